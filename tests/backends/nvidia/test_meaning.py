"""A kernel's parameters describe its region: a product in numpy reads them like the GPU code.

So extents, strides, transpositions, operands, scales and epilogues are right before any GPU is seen.
"""

from dataclasses import dataclass
from math import erf, sqrt

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from collage.backends.base import BuildContext
from collage.backends.nvidia.chain import PRODUCTS
from collage.backends.nvidia.cublas import CublasBackend
from collage.backends.nvidia.cutlass import CutlassBackend
from collage.backends.nvidia.operands import Operands
from collage.frontend import Function, import_model
from collage.frontend.inputs import random_inputs, reference_values
from collage.pipeline.candidate_list import listed
from collage.rules import find_candidates
from collage.runtime.blob import unpack

GELU = {
    "gelu_erf": np.vectorize(lambda x: x * 0.5 * (1 + erf(x / sqrt(2))), otypes=[np.float64]),
    "gelu": lambda x: x * 0.5 * (1 + np.tanh(sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
}
ACTIVATIONS = {"none": lambda x: x, "": lambda x: x, "relu": lambda x: np.maximum(x, 0), **GELU}


@dataclass
class Told:
    """The GPU code's parameters; `tensors` are the region's inputs, then the constants."""

    m: int
    n: int
    k: int
    batch: int
    left_stride: int
    right_stride: int
    residual_stride: int
    left_transposed: bool
    right_transposed: bool
    left: int
    right: int
    bias: int
    residual: int
    alpha: float
    activation: str

    def run(self, tensors) -> np.ndarray:
        flat = [np.asarray(tensor, np.float64).reshape(-1) for tensor in tensors]
        results = []
        for number in range(self.batch):
            left = _matrix(
                flat[self.left], number * self.left_stride, self.m, self.k, self.left_transposed
            )
            right = _matrix(
                flat[self.right], number * self.right_stride, self.k, self.n, self.right_transposed
            )
            result = self.alpha * (left @ right)
            if self.bias >= 0:
                result = result + flat[self.bias][: self.n]
            if self.residual >= 0:
                result += _matrix(
                    flat[self.residual], number * self.residual_stride, self.m, self.n, False
                )
            results.append(ACTIVATIONS[self.activation](result))
        return np.stack(results)


def _matrix(flat, start, rows, columns, transposed):
    part = flat[start : start + rows * columns]
    return part.reshape(columns, rows).T if transposed else part.reshape(rows, columns)


def told_cublas(function: Function, nodes: int):
    header, constants = unpack(CublasBackend().compile(function, nodes, BuildContext(1)).blob)
    names = [name for name in Told.__annotations__ if name != "alpha"]
    fields = {name: header[name] for name in names}
    return Told(**fields, alpha=float(header["alpha"])), constants


def told_cutlass(function: Function, nodes: int):
    gemm, constants = CutlassBackend().describe(function, nodes, "")
    product, epilogue = gemm.product, gemm.epilogue
    product = Told(
        product.m, product.n, product.k, product.batch, product.left_stride, product.right_stride,
        epilogue.residual_stride, product.left_transposed, product.right_transposed,
        gemm.left, gemm.right, gemm.bias, gemm.residual, epilogue.alpha, epilogue.activation,
    )  # fmt: skip
    return product, constants


TELL = {"cublas": (CublasBackend, told_cublas), "cutlass": (CutlassBackend, told_cutlass)}


def check_all(function: Function, backend_name: str, limit: int = 10**6) -> int:
    """Compare every candidate of the backend with the reference; return how many there were."""
    kind, tell = TELL[backend_name]
    values = reference_values(function, random_inputs(function, 0))
    candidates = [c for c in find_candidates(function, [kind()]) if not c.is_host and not c.variant]
    for candidate in candidates[:limit]:
        product, constants = tell(function, candidate.inside)
        operands = Operands(function, candidate.inside)
        inputs = [values[name] for name in operands.inputs]
        expected = values[operands.outputs[0]].astype(np.float64)
        got = product.run([*inputs, *constants]).reshape(expected.shape)
        scale = np.abs(expected).max() + 1e-6
        np.testing.assert_allclose(got / scale, expected / scale, atol=2e-5)
    return len(candidates[:limit])


@pytest.mark.parametrize("backend", TELL)
@pytest.mark.parametrize(("model", "limit"), [("bert_base_2l", 18), ("gpt2_2l", 22)])
def test_products_of_real_models(real_model, model, backend, limit):
    assert check_all(real_model(model).functions[0], backend, limit) == min(
        limit, {"bert_base_2l": 18, "gpt2_2l": 22 if backend == "cublas" else 20}[model]
    )


def product_model(folder, kind: str) -> Function:
    """Return one product in one of the ONNX forms."""
    random = np.random.default_rng(1)
    weights: dict[str, np.ndarray] = {}

    def weight(name, *shape):
        weights[name] = random.standard_normal(shape).astype(np.float32)
        return name

    inputs = {"x": (6, 8)}
    match kind:
        case "gemm, both transposed":
            inputs = {"x": (8, 6)}
            nodes = [helper.make_node("Gemm", ["x", weight("w", 4, 8), weight("b", 4)], ["y"],
                                      transA=1, transB=1, alpha=0.5)]  # fmt: skip
        case "gemm with a matrix":
            inputs = {"x": (6, 8), "z": (6, 4)}
            nodes = [helper.make_node("Gemm", ["x", weight("w", 8, 4), "z"], ["y"])]
        case "one left matrix for a batch":
            inputs = {"x": (1, 6, 8), "z": (3, 8, 4)}
            nodes = [helper.make_node("MatMul", ["x", "z"], ["y"])]
        case "a batch with one residual":
            inputs = {"x": (3, 6, 8), "z": (3, 8, 4)}
            nodes = [helper.make_node("MatMul", ["x", "z"], ["p"]),
                     helper.make_node("Add", [weight("r", 1, 6, 4), "p"], ["y"])]  # fmt: skip
        case "scaled by a division":
            nodes = [helper.make_node("MatMul", ["x", weight("w", 8, 4)], ["p"]),
                     helper.make_node("Div", ["p", weight("d")], ["y"])]  # fmt: skip
        case _:
            inputs = {"x": (2, 3, 8), "z": (2, 3, 4)}
            nodes = [helper.make_node("MatMul", ["x", weight("w", 8, 4)], ["p"]),
                     helper.make_node("Add", ["p", weight("b", 4)], ["q"]),
                     helper.make_node("Add", ["z", "q"], ["s"]),
                     helper.make_node("Relu", ["s"], ["y"])]  # fmt: skip
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()]
    graph = helper.make_graph(
        nodes, "product", infos, [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(onnx.shape_inference.infer_shapes(proto), folder / "product.onnx")
    return import_model(folder / "product.onnx", work_dir=folder / "work").functions[0]


@pytest.mark.parametrize("backend", TELL)
@pytest.mark.parametrize(
    ("kind", "regions"),
    [
        ("gemm, both transposed", 1),
        ("gemm with a matrix", 1),
        ("one left matrix for a batch", 1),
        ("a batch with one residual", 2),
        ("scaled by a division", 2),
        ("bias, residual and activation", 4),
    ],
)
def test_every_form_of_a_product(tmp_path, backend, kind, regions):
    function = product_model(tmp_path, kind)
    anchors = sum(node.op in PRODUCTS for node in function.graph.nodes)
    is_refused = kind.startswith("bias") and backend == "cutlass"
    assert check_all(function, backend) == (2 if is_refused else regions) >= anchors


def test_a_residual_that_repeats_over_rows_is_refused(tmp_path):
    """Rows of a batch are one product when the right side is one matrix; a residual must have them all."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Add", ["p", "z"], ["y"]),
    ]
    infos = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in {"x": (2, 3, 8), "z": (1, 3, 4)}.items()
    ]
    weight = numpy_helper.from_array(np.ones((8, 4), np.float32), "w")
    graph = helper.make_graph(nodes, "g", infos, [onnx.ValueInfoProto(name="y")], [weight])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(onnx.shape_inference.infer_shapes(proto), tmp_path / "m.onnx")
    function = import_model(tmp_path / "m.onnx", work_dir=tmp_path / "work").functions[0]
    chains = listed(function, CublasBackend())
    assert chains.labels == {"matmul": 1}
    assert list(chains.left_out) == [
        "matmul+residual: residual that is repeated over the rows of one product"
    ]
