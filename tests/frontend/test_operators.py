"""The Relax form of every operator computes what ONNX Runtime computes."""

import re

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto
from onnx.helper import make_node
from tvm import relax

from collage.frontend.importer import write_types
from collage.frontend.infer import infer_types
from collage.frontend.inputs import reference_values
from collage.frontend.load_function import make_function
from collage.frontend.region import region_constants, region_relax, region_values
from collage.frontend.tidy import tidy
from collage.graph.op_pattern import OpPatternKind
from tests.frontend.build import integers, model

X = (2, 3, 8, 8)
TARGET = {"kind": "llvm", "num-cores": 1}


def scalar(value: float, dtype: str = "float32") -> np.ndarray:
    return np.array(value, dtype)


ONE, HALF = scalar(1), scalar(0.5)

# Operator (with an opset other than 22), attributes, operands: a shape is a random float input, a text
# is a random input of another sort, an array is a constant.
CASES = [
    ("Abs", {}, [X]),
    ("Relu", {}, [X]),
    ("Clip", {}, [X, scalar(-0.5), HALF]),
    ("Clip", {}, [X, scalar(-0.5)]),
    ("Clip", {}, [X, None, HALF]),
    ("Clip@6", {"min": -0.5, "max": 0.5}, [X]),
    ("Sum", {}, [X, X, (8,)]),
    ("Mean", {}, [X, X]),
    ("Max", {}, [X, X]),
    ("Min", {}, [X, (8,)]),
    ("HardSwish", {}, [X]),
    ("HardSigmoid", {"alpha": 0.166, "beta": 0.4}, [X]),
    ("Gelu", {}, [X]),
    ("Gelu", {"approximate": "tanh"}, [X]),
    ("Erf", {}, [X]),
    ("Sigmoid", {}, [X]),
    ("Tanh", {}, [X]),
    ("Elu", {"alpha": 0.5}, [X]),
    ("Celu", {"alpha": 0.5}, [X]),
    ("LeakyRelu", {"alpha": 0.1}, [X]),
    ("PRelu", {}, [X, (3, 1, 1)]),
    ("Selu", {}, [X]),
    ("Softplus", {}, [X]),
    ("Mish", {}, [X]),
    ("Softmax", {"axis": 1}, [X]),
    ("Softmax@11", {"axis": 1}, [X]),
    ("LogSoftmax", {}, [X]),
    ("LayerNormalization", {}, [X, (8,), (8,)]),
    ("LayerNormalization", {"axis": 2, "epsilon": 1e-3}, [X, (8, 8)]),
    ("BatchNormalization", {}, [X, (3,), (3,), (3,), "positive:3"]),
    ("InstanceNormalization", {}, [X, (3,), (3,)]),
    ("GroupNormalization", {"num_groups": 1}, [X, (3,), (3,)]),
    ("RMSNormalization@23", {}, [X, (8,)]),
    ("LRN", {"size": 3}, [X]),
    ("Conv", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}, [X, (4, 3, 3, 3), (4,)]),
    ("Conv", {"strides": [2, 2], "auto_pad": "SAME_UPPER"}, [X, (4, 3, 3, 3)]),
    ("Conv", {"strides": [2, 2], "auto_pad": "SAME_LOWER"}, [X, (4, 3, 4, 4)]),
    ("Conv", {"auto_pad": "VALID"}, [X, (4, 3, 4, 4)]),
    ("Conv", {"group": 3, "dilations": [2, 2]}, [X, (6, 1, 3, 3), (6,)]),
    ("Conv", {"pads": [1, 1]}, [(2, 3, 8), (4, 3, 3), (4,)]),
    ("Conv", {"pads": [0, 1, 2, 1]}, [X, (4, 3, 3, 3)]),
    ("ConvTranspose", {"strides": [2, 2]}, [X, (3, 4, 2, 2), (4,)]),
    ("ConvTranspose", {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]},
     [X, (3, 4, 3, 3)]),
    ("Gemm", {"transB": 1, "alpha": 0.5, "beta": 2.0}, [(4, 5), (6, 5), (6,)]),
    ("Gemm", {"transA": 1}, [(5, 4), (5, 6)]),
    ("MatMul", {}, [(2, 3, 4, 5), (5, 6)]),
    ("MatMul", {}, [(5,), (5, 6)]),
    ("MatMul", {}, [(2, 1, 4, 5), (3, 5, 6)]),
    ("Einsum", {"equation": "bij,bjk->bik"}, [(2, 3, 4), (2, 4, 5)]),
    ("ReduceMean", {"keepdims": 0}, [X, integers(2, 3)]),
    ("ReduceMean", {}, [X]),
    ("ReduceMean@13", {"axes": [2, 3]}, [X]),
    ("ReduceSum", {}, [X, integers(1)]),
    ("ReduceMax", {}, [X, integers(1)]),
    ("ReduceMin", {}, [X, integers(-1)]),
    ("ReduceProd", {}, [X, integers(1)]),
    ("ReduceL2", {}, [X, integers(1)]),
    ("MaxPool", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}, [X]),
    ("MaxPool", {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}, [X]),
    ("AveragePool", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}, [X]),
    ("AveragePool", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}, [X]),
    ("AveragePool", {"kernel_shape": [2, 2], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
     [(1, 3, 7, 7)]),
    ("AveragePool", {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}, [X]),
    ("GlobalAveragePool", {}, [X]),
    ("GlobalMaxPool", {}, [X]),
    ("Pad", {}, [X, integers(0, 0, 1, 2, 0, 0, 2, 1), HALF]),
    ("Pad", {"mode": "reflect"}, [X, integers(0, 0, 1, 2, 0, 0, 2, 1)]),
    ("Pad@2", {"pads": [0, 0, 1, 1, 0, 0, 1, 1]}, [X]),
    ("Tile", {}, [X, integers(1, 2, 1, 1)]),
    ("Expand", {}, [(3, 1, 8), integers(2, 3, 4, 8)]),
    ("Reshape", {}, [X, integers(2, -1, 0)]),
    ("Transpose", {"perm": [0, 2, 3, 1]}, [X]),
    ("Transpose", {}, [(2, 3)]),
    ("Flatten", {"axis": 2}, [X]),
    ("Squeeze", {}, [(1, 3, 1), integers(0)]),
    ("Squeeze@11", {"axes": [0]}, [(1, 3)]),
    ("Unsqueeze", {}, [(3,), integers(0, 2)]),
    ("Concat", {"axis": 1}, [X, X]),
    ("Split", {"axis": 1, "num_outputs": 2}, [(2, 4, 3)]),
    ("Split", {"axis": 1}, [(2, 4, 3), integers(1, 3)]),
    ("Split@11", {"axis": 1, "split": [1, 3]}, [(2, 4, 3)]),
    ("Slice", {}, [X, integers(1), integers(7), integers(3), integers(2)]),
    ("Slice", {}, [X, integers(-1), integers(-9), integers(3), integers(-2)]),
    ("Gather", {"axis": 1}, [X, integers(0, -1)]),
    ("Gather", {"axis": 1}, [X, scalar(1, "int64")]),
    ("Gather", {"axis": 0}, [X, scalar(-1, "int64")]),
    ("Gather", {"axis": 2}, [X, "index:4"]),
    ("GatherElements", {"axis": 1}, [(2, 3), np.array([[0, -1]])]),
    ("GatherND", {}, [X, np.array([[0, 1], [1, 2]])]),
    ("ScatterND", {}, [(4, 3), np.array([[1], [2]]), (2, 3)]),
    ("Resize", {"mode": "nearest", "coordinate_transformation_mode": "asymmetric",
                "nearest_mode": "floor"}, [X, None, np.array([1, 1, 2, 2], "float32")]),
    ("Resize", {"mode": "linear"}, [X, None, None, integers(2, 3, 11, 16)]),
    ("Resize", {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
     [X, None, np.array([1, 1, 2, 2], "float32")]),
    ("Resize", {"mode": "cubic"}, [X, None, np.array([1, 1, 2, 2], "float32")]),
    ("DepthToSpace", {"blocksize": 2, "mode": "CRD"}, [(1, 8, 3, 3)]),
    ("SpaceToDepth", {"blocksize": 2}, [X]),
    ("GridSample", {}, [X, (2, 4, 4, 2)]),
    ("Pow", {}, ["positive", scalar(2)]),
    ("Pow", {}, [X, scalar(3)]),
    ("Pow", {}, ["positive", HALF]),
    ("Sqrt", {}, ["positive"]),
    ("Log", {}, ["positive"]),
    ("Exp", {}, [X]),
    ("Neg", {}, [X]),
    ("Reciprocal", {}, ["positive"]),
    ("Floor", {}, [X]),
    ("Round", {}, [X]),
    ("Mod", {"fmod": 1}, [X, "positive"]),
    ("Div", {}, [X, "positive"]),
    ("Sub", {}, [X, (3, 1, 1)]),
    ("Mul", {}, [X, scalar(3)]),
    ("Add", {}, ["integer", scalar(3, "int64")]),
    ("Div", {}, ["integer", scalar(3, "int64")]),
    ("Mod", {}, ["integer", scalar(3, "int64")]),
    ("Cast", {"to": TensorProto.INT32}, [X]),
    ("Cast", {"to": TensorProto.FLOAT16}, [X]),
    ("Equal", {}, ["integer", scalar(3, "int64")]),
    ("GreaterOrEqual", {}, [X, X]),
    ("Where", {}, ["boolean", X, scalar(-1)]),
    ("And", {}, ["boolean", "boolean"]),
    ("Not", {}, ["boolean"]),
    ("ArgMax", {"axis": 1, "keepdims": 0}, [X]),
    ("TopK", {}, [(2, 9), integers(3)]),
    ("CumSum", {}, [(2, 9), scalar(1, "int64")]),
    ("Trilu", {"upper": 0}, [(4, 5)]),
    ("QuantizeLinear", {}, [X, scalar(0.02), scalar(10, "uint8")]),
    ("DequantizeLinear", {}, ["byte", scalar(0.02), scalar(10, "uint8")]),
    ("Dropout@7", {}, [X]),
    ("Identity", {}, [X]),
]  # fmt: skip


def random_input(description: tuple[int, ...] | str) -> np.ndarray:
    generator = np.random.default_rng(0)
    if isinstance(description, tuple):
        return generator.standard_normal(description, dtype=np.float32)
    sort, _, size = description.partition(":")
    shape = (int(size),) if size else X
    if sort == "positive":
        return generator.random(shape, dtype=np.float32) + np.float32(0.5)
    if sort == "boolean":
        return generator.random(shape) > 0.5
    if sort == "byte":
        return generator.integers(0, 255, shape).astype(np.uint8)
    return generator.integers(-8 if sort == "index" else 0, 8, shape)


def make_case(case, tmp_path):
    op, attributes, operands = case
    op, _, opset = op.partition("@")
    feeds, weights = {}, {}
    for number, operand in enumerate(operands):
        if isinstance(operand, np.ndarray):
            weights[f"i{number}"] = operand
        elif operand is not None:
            feeds[f"i{number}"] = random_input(operand)
    names = ["" if operand is None else f"i{n}" for n, operand in enumerate(operands)]
    outputs = ["o0", "o1"][: 2 if op in ("Split", "TopK") else 1]
    inputs = {name: (str(value.dtype), value.shape) for name, value in feeds.items()}
    node = make_node(op, names, outputs, **attributes)
    document = model([node], inputs, outputs, weights, int(opset or 22))
    tidy(document)
    write_types(document, infer_types(document, tmp_path))
    return make_function(document, "main", tmp_path, [OpPatternKind.OPAQUE]), feeds


def name(case) -> str:
    operands = [getattr(operand, "shape", operand) for operand in case[2]]
    return re.sub(r"[^\w@]+", "-", f"{case[0]} {case[1]} {operands}")[:60]


@pytest.mark.parametrize("case", CASES, ids=name)
def test_relax_computes_the_same(case, tmp_path):
    function, feeds = make_case(case, tmp_path)
    expected = reference_values(function, feeds)
    assert function.relax_nodes[0] is not None, "foreign"
    executable = tvm.compile(region_relax(function, 1), target=tvm.target.Target(TARGET))
    inputs, outputs = region_values(function, 1)
    values = [feeds[input_name] for input_name in inputs]
    values += [function.weights[weight_name] for weight_name in region_constants(function, 1)]
    arguments = [tvm.runtime.tensor(np.ascontiguousarray(value)) for value in values]
    results = relax.VirtualMachine(executable, tvm.cpu())["main"](*arguments)
    for output, result in zip(outputs, [results] if len(outputs) == 1 else results, strict=True):
        actual = result.numpy()
        assert actual.dtype == expected[output].dtype
        np.testing.assert_allclose(actual, expected[output], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("op", "attributes", "operands", "composite"),
    [
        ("Relu", {}, [X], False),
        ("Gelu", {}, [X], False),
        ("LayerNormalization", {}, [X, (8,), (8,)], False),
        ("Conv", {}, [X, (4, 3, 3, 3)], False),
        ("Conv", {}, [X, (4, 3, 3, 3), (4,)], True),
        ("HardSigmoid", {}, [X], True),
        ("Clip", {}, [X, HALF, ONE], False),
        ("Sum", {}, [X, X, X], True),
    ],
)
def test_one_relax_op_is_no_composite(op, attributes, operands, composite, tmp_path):
    function, _ = make_case((op, attributes, operands), tmp_path)
    assert function.relax_nodes[0].composite == composite


def test_half_precision_and_brain_floats(tmp_path):
    for dtype in ("float16", "bfloat16"):
        number = onnx.TensorProto.FLOAT16 if dtype == "float16" else onnx.TensorProto.BFLOAT16
        document = model([make_node("Relu", ["x"], ["y"])], {"x": ("float32", (2, 3))}, ["y"])
        document.graph.input[0].type.tensor_type.elem_type = number
        write_types(document, infer_types(document, tmp_path))
        function = make_function(document, "main", tmp_path, [OpPatternKind.OPAQUE])
        assert function.graph.types["y"].dtype == dtype
        assert function.relax_nodes[0] is not None
