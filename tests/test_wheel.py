"""The wheel that `pip wheel` makes of this checkout, without the compiled plug-in."""

import subprocess
import sys
import zipfile

import pytest

from tests.documents import ROOT

BUILD = """
import sys
from scikit_build_core.build import build_wheel
build_wheel(sys.argv[1], {"wheel.cmake": "false"})
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-c", BUILD, folder], cwd=ROOT, check=True)
    (file,) = folder.glob("*.whl")
    with zipfile.ZipFile(file) as opened:
        yield opened


def test_the_wheel_says_that_it_is_typed(wheel):
    assert "collage/py.typed" in wheel.namelist()


@pytest.mark.parametrize("name", ["LICENSE", "NOTICE"])
def test_the_wheel_has_licence_and_notice(wheel, name):
    (member,) = [one for one in wheel.namelist() if one.endswith(f".dist-info/licenses/{name}")]
    assert wheel.read(member) == (ROOT / name).read_bytes()


def test_the_wheel_states_its_licence(wheel):
    (member,) = [one for one in wheel.namelist() if one.endswith(".dist-info/METADATA")]
    assert "\nLicense-Expression: Apache-2.0\n" in wheel.read(member).decode()
