"""What skips a test outside CI fails it there; hardware does not."""

import pytest

from tests.support.skips import failure_in_ci

pytest_plugins = ["pytester"]

TESTS = """
import pytest

@pytest.mark.skipif(True, reason="openssl is not installed")
def test_marked(): ...

def test_called():
    pytest.skip("no nvcc: make test installs it")

@pytest.mark.skip("no GPU")
def test_hardware(): ...

@pytest.mark.xfail(reason="openssl is not installed")
def test_expected():
    raise ValueError

def test_passes(): ...
"""


@pytest.mark.parametrize(
    ("ci", "outcomes"),
    [
        ("", {"passed": 1, "skipped": 3, "xfailed": 1}),
        ("true", {"passed": 1, "skipped": 1, "failed": 1, "errors": 1, "xfailed": 1}),
    ],
)
def test_a_skip_without_a_good_reason_fails_in_ci(pytester, monkeypatch, ci, outcomes):
    monkeypatch.setenv("CI", ci)
    pytester.makepyfile(TESTS)
    found = pytester.runpytest_inprocess("-p", "tests.conftest", "-p", "no:cacheprovider")
    assert found.parseoutcomes() == outcomes


@pytest.mark.parametrize(("ci", "errors"), [("", 0), ("true", 1)])
def test_a_skipped_module_fails_in_ci(pytester, monkeypatch, ci, errors):
    monkeypatch.setenv("CI", ci)
    pytester.makepyfile('import pytest\npytest.importorskip("no_such_package")\n')
    found = pytester.runpytest_inprocess("-p", "tests.conftest", "-p", "no:cacheprovider")
    assert found.parseoutcomes().get("errors", 0) == errors
    if errors:
        found.stdout.fnmatch_lines(["*skipped in CI: could not import 'no_such_package'*"])


@pytest.mark.parametrize(
    ("reason", "fails"),
    [
        (
            "no kube-apiserver: it is built with Go, which is not here; or set KUBEBUILDER_ASSETS",
            True,
        ),
        ("boto3 is not installed: pip install 'collage[s3]'", True),
        ("could not import 'prefect': No module named 'prefect'", True),
        ("this processor has neither amx_bf16 nor avx512_bf16", False),
        ("this machine has a GPU", False),
        ("no real node and no images: `make e2e` has them", False),
        ("no cudnn.h: make cuda-check installs it", False),
        ("Skipped: not on this GPU: no libcudnn.so.9", False),
        ("no images: buildah is not installed", False),
        ("only root can be two users", False),
    ],
)
def test_reasons_of_hardware_are_allowed(monkeypatch, reason, fails):
    monkeypatch.setenv("CI", "true")
    assert bool(failure_in_ci(reason)) == fails
