"""NOTICE names what the wheel, bundles and images redistribute."""

import re
import sys

import pytest

from collage.runtime.plugin import LIBRARIES
from containers.notice import closure, extras, libraries, license_of, notice
from tests.documents import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text()
PYTHON = re.search(r"python:(\d+)\.(\d+)-", DOCKERFILE)
NOTICE = (ROOT / "NOTICE").read_text()


@pytest.mark.skipif(
    sys.version_info[:2] != tuple(map(int, PYTHON.groups())),
    reason="other versions of Python need other distributions than the images have",
)
def test_notice_is_what_is_installed():
    assert notice() == NOTICE, "run `make notice`"


def test_every_image_has_its_libraries_in_notice():
    listed = dict(
        line.split()[:2] for line in NOTICE.partition("/usr/share/sbom.\n\n")[2].splitlines()
    )
    assert {"prefect": "c", "openvino": "cms", "nvidia-cublas": "cms+"}.items() <= listed.items()
    assert dict(libraries()).keys() <= listed.keys()


def test_extras_are_read_from_the_dockerfile():
    assert extras("serve", cuda=False) == {"serve", "s3", "obstore"}
    assert extras("controller", cuda=True) == {"flows", "mlflow", "receiver", "cuda-build"}


def test_requirements_of_requirements_are_found():
    assert {"numpy", "botocore", "jmespath"} <= closure(frozenset({"s3"}))
    assert "prefect" not in closure(frozenset({"s3"}))


def test_every_licence_is_an_spdx_expression():
    """No word of a vague statement such as "BSD" or "Dual License" is left."""
    for name, _ in libraries():
        for word in re.split(r" (?:AND|OR|WITH) |[()]", license_of(name)):
            assert re.fullmatch(r"|[\w.]+(-[\w.]+)+|MIT|ISC|Zlib|0BSD", word), name


def test_vendor_libraries_of_bundles_come_with_an_image():
    """What kernels open at run time is listed, save what a user installs: GPU builds and TensorRT."""
    own = {"nvidia-curand", "tensorrt-cu13-libs"}
    assert {library.distribution for library in LIBRARIES.values()} - own <= dict(
        libraries()
    ).keys()


def test_copied_libraries_of_the_wheel_are_in_notice():
    cmake = (ROOT / "native/CMakeLists.txt").read_text()
    copies = re.findall(r"install\(PROGRAMS \S+/(\S+\.so) DESTINATION collage/", cmake)
    assert len(copies) == 2
    assert all(name in NOTICE for name in copies)
