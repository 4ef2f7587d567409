"""A target is its name, and code asks a target instead of comparing names."""

import ast
import json
import pickle

import pytest

from collage.errors import OptionError
from collage.options import DEVICES, Options
from collage.runtime.target import Target
from tests.documents import ROOT

NAMES = {target.value for target in Target}
OTHER_KINDS = {
    "collage/backends/nvidia/tvm_cuda/schedule.py",
    "collage/runtime/inference_session.py",
}
"""A kind of TVM's modules is no target, nor is a device of ONNX Runtime's interface."""


def comparisons(source):
    """Lines that compare something with the name of a target."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Compare)
        and any(
            isinstance(constant, ast.Constant) and constant.value in NAMES
            for side in (node.left, *node.comparators)
            for constant in ast.walk(side)
        )
    ]


def test_no_module_compares_names_of_targets():
    assert comparisons('a = device != "cpu"\nb = device in ("cpu", "cuda")\nc = 1 < 2') == [1, 2]
    files = [
        file
        for package in ("collage", "flows", "containers")
        for file in sorted((ROOT / package).rglob("*.py"))
    ]
    assert len(files) > 300
    places = {
        str(file.relative_to(ROOT)): lines
        for file in files
        if (lines := comparisons(file.read_text()))
    }
    assert places.keys() == OTHER_KINDS


@pytest.mark.parametrize("name", DEVICES)
def test_a_target_is_its_name(name):
    target = Options(device=name).target
    assert target is Target(name)
    assert (target, str(target), f"{target}", json.dumps(target)) == (name, name, name, f'"{name}"')
    assert pickle.loads(pickle.dumps(target)) is target
    assert {name: 1}[target] == 1


def test_options_have_the_names_of_all_targets():
    assert set(DEVICES) == NAMES
    with pytest.raises(OptionError, match="unknown device"):
        Options(device="gpu")


def test_the_two_targets_differ_in_every_rule():
    rules = [name for name, value in vars(Target).items() if isinstance(value, property)]
    assert len(rules) > 10
    for rule in rules:
        assert getattr(Target.CPU, rule) != getattr(Target.CUDA, rule), rule
