"""Which nodes are converted: TVM's converter computes constants, in this process."""

import numpy as np
import pytest
from onnx import helper

from collage.frontend.convert import MAX_FOLDED_BYTES, convert, single_node
from collage.graph.dataflow import TensorType

LARGE = 2 * MAX_FOLDED_BYTES // 4
SHAPE = np.array([LARGE], np.int64)


def converted(op, result, operands):
    """The Relax form of a node; arrays are constants, types run-time operands."""
    types = {
        name: operand
        if isinstance(operand, TensorType)
        else TensorType(operand.shape, operand.dtype.name)
        for name, operand in operands.items()
    }
    constants = {
        name: operand for name, operand in operands.items() if isinstance(operand, np.ndarray)
    }
    node = helper.make_node(op, list(operands), ["y"])
    types["y"] = TensorType(result, "float32")
    return convert(single_node(node, types, constants, 17))


def ends(count):
    return {name: np.array(end, "float32") for name, end in zip("abc", (0, count, 1), strict=True)}


@pytest.fixture
def requests(monkeypatch):
    """Operators of the nodes that TVM was asked about."""
    operators = []

    def ask(model):
        operators.append(model.graph.node[0].op_type)
        raise ValueError("asked")

    monkeypatch.setattr("tvm.relax.frontend.onnx.from_onnx", ask)
    return operators


@pytest.mark.parametrize(
    ("op", "operands"), [("Range", ends(LARGE)), ("ConstantOfShape", {"s": SHAPE})], ids=str
)
def test_large_constants_are_not_computed(op, operands, requests):
    assert converted(op, (LARGE,), operands) is None
    assert requests == []


def test_small_constants_are_computed(requests):
    converted("Range", (7,), ends(7))
    assert requests == ["Range"]


def test_large_results_of_operands_have_a_form():
    operands = {"x": TensorType((1,), "float32"), "s": SHAPE}
    assert converted("Expand", (LARGE,), operands) is not None
