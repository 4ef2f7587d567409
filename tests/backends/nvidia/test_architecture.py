"""The target architecture of generated code."""

import pytest

from collage.backends.nvidia.architecture import (
    DEFAULT,
    TOLD,
    architecture,
    chosen,
    generate_for,
)
from collage.backends.nvidia.libraries import driver_reason
from collage.errors import BackendError

KNOWN = (75, 80, 86, 87, 89, 90, 100, 103, 120)


@pytest.mark.parametrize(
    ("capability", "compiled"), [(80, 80), (86, 86), (88, 87), (89, 89), (90, 90), (121, 120)]
)
def test_the_largest_that_the_gpu_runs_is_chosen(capability, compiled):
    assert chosen(capability, KNOWN) == compiled


def test_without_a_list_of_the_compiler_the_gpu_is_the_target():
    assert chosen(121, ()) == 121


@pytest.mark.parametrize(
    ("capability", "words"), [(75, "capability 7.5; the least is 8.0"), (110, "newer one")]
)
def test_what_cannot_be_has_a_reason(capability, words):
    with pytest.raises(BackendError, match=words):
        chosen(capability, KNOWN)


@pytest.mark.skipif(driver_reason() == "", reason="this machine has a GPU")
def test_without_a_gpu_code_is_checked_for_the_default():
    assert architecture() == f"sm_{DEFAULT}"


@pytest.mark.skipif(driver_reason() == "", reason="this machine has a GPU")
def test_a_machine_that_builds_for_others_is_told_for_which(monkeypatch):
    monkeypatch.setenv(TOLD, "")
    generate_for("80")
    try:
        assert architecture() == "sm_80"
    finally:
        monkeypatch.undo()
        architecture.cache_clear()
