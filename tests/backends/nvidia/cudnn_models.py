"""Small models for cuDNN's operation graphs, in any precision."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from collage.backends.nvidia.cudnn import CudnnBackend
from collage.frontend import Function
from collage.frontend.load_function import make_function
from collage.graph.op_pattern import OpPatternKind
from collage.rules import find_candidates
from collage.rules.rule import Candidate
from tests.backends.nvidia.layer import TYPES

Shape = tuple[int, ...]
node = helper.make_node

ACTIVATIONS = {
    "relu": [node("Relu", ["v"], ["y"])],
    "sigmoid": [node("Sigmoid", ["v"], ["y"])],
    "tanh": [node("Tanh", ["v"], ["y"])],
    "elu": [node("Elu", ["v"], ["y"])],
    "softplus": [node("Softplus", ["v"], ["y"])],
    "swish": [node("Sigmoid", ["v"], ["s"]), node("Mul", ["v", "s"], ["y"])],
    "hardswish": [
        node("HardSigmoid", ["v"], ["s"], alpha=1 / 6, beta=0.5), node("Mul", ["v", "s"], ["y"]),
    ],
    "gelu_erf": [
        node("Div", ["v", "root"], ["g1"]), node("Erf", ["g1"], ["g2"]),
        node("Add", ["g2", "one"], ["g3"]), node("Mul", ["v", "g3"], ["g4"]),
        node("Mul", ["g4", "half"], ["y"]),
    ],
}  # fmt: skip
NUMBERS = {
    "root": np.sqrt(2), "one": 1.0, "half": 0.5, "two": 2.0, "epsilon": 1e-5, "scale": 0.25,
}  # fmt: skip


def model(
    folder: Path, dtype: str, nodes: Sequence[onnx.NodeProto], inputs: Mapping[str, Shape],
    weights: Mapping[str, Shape],
) -> Function:  # fmt: skip
    """Return a function of the nodes with the last node's result; weights are random.

    It is loaded like in a worker, not imported: ONNX Runtime has no bfloat16 products on a CPU.
    """
    kind = TYPES[dtype]
    rng = np.random.default_rng(5)
    used = {name for member in nodes for name in member.input}
    values = {name: rng.standard_normal(shape) / 3 for name, shape in weights.items()}
    values |= {name: np.asarray(number) for name, number in NUMBERS.items() if name in used}
    for name in ("variance",):
        if name in values:
            values[name] = np.abs(values[name]) + 0.5
    as_type = helper.tensor_dtype_to_np_dtype(kind)
    tensors = [
        numpy_helper.from_array(array.astype(as_type), name) for name, array in values.items()
    ]
    infos = [helper.make_tensor_value_info(name, kind, shape) for name, shape in inputs.items()]
    result = helper.make_tensor_value_info(nodes[-1].output[0], kind, None)
    graph = helper.make_graph(list(nodes), "model", infos, [result], tensors)
    opsets = [helper.make_opsetid("", 17)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    inferred = onnx.shape_inference.infer_shapes(proto, strict_mode=True, data_prop=True)
    onnx.save(inferred, folder / "model.onnx")
    kinds = [OpPatternKind.OPAQUE] * len(nodes)
    return make_function(inferred, "main", folder / "model.onnx", kinds)


def convolution(folder: Path, dtype: str, activation: str, group: int = 1) -> Function:
    """activation(x * w + b + r): uneven pads, strides, and a residual."""
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], pads=[1, 0, 1, 2], strides=[1, 2], group=group),
        node("Add", ["c", "r"], ["v"]),
        *ACTIVATIONS[activation],
    ]
    inputs = {"x": (2, 8, 7, 9), "r": (2, 16, 7, 5)}
    return model(folder, dtype, nodes, inputs, {"w": (16, 8 // group, 3, 3), "b": (16,)})


def sequence_convolution(folder: Path, dtype: str) -> Function:
    """A convolution over one dimension, with a dilation."""
    nodes = [
        node("Conv", ["x", "w"], ["v"], dilations=[2], pads=[2, 2]), *ACTIVATIONS["sigmoid"],
    ]  # fmt: skip
    return model(folder, dtype, nodes, {"x": (1, 8, 12)}, {"w": (8, 8, 3)})


def volume_convolution(folder: Path, dtype: str) -> Function:
    """A convolution over three dimensions."""
    nodes = [node("Conv", ["x", "w"], ["v"], pads=[1] * 6), *ACTIVATIONS["sigmoid"]]
    return model(folder, dtype, nodes, {"x": (1, 8, 3, 4, 5)}, {"w": (8, 8, 3, 3, 3)})


def attention(folder: Path, dtype: str, mask: Shape = (), turned: bool = True) -> Function:
    """Attention of 3 heads of 16 values; operands and result transposed, or the keys alone."""
    outside = (2, 6, 3, 16) if turned else (2, 3, 6, 16)
    nodes = [node("Transpose", ["k"], ["kt"], perm=[0, 2, 3, 1] if turned else [0, 1, 3, 2])]
    query, values = "q", "v"
    if turned:
        nodes += [
            node("Transpose", [operand], [f"{operand}t"], perm=[0, 2, 1, 3])
            for operand in ("q", "v")
        ]
        query, values = "qt", "vt"
    nodes += [node("MatMul", [query, "kt"], ["p"]), node("Mul", ["p", "scale"], ["s"])]
    if mask:
        nodes.append(node("Add", ["s", "m"], ["masked"]))
    nodes += [
        node("Softmax", ["masked" if mask else "s"], ["w"], axis=-1),
        node("MatMul", ["w", values], ["o"]),
    ]
    if turned:
        nodes.append(node("Transpose", ["o"], ["y"], perm=[0, 2, 1, 3]))
    inputs = dict.fromkeys(("q", "k", "v"), outside)
    return model(folder, dtype, nodes, inputs, {"m": mask} if mask else {})


def layer_norm(folder: Path, dtype: str) -> Function:
    """Over the last two axes, without a bias."""
    nodes = [node("LayerNormalization", ["x", "s"], ["y"], axis=-2, epsilon=1e-3)]
    return model(folder, dtype, nodes, {"x": (3, 5, 4, 6)}, {"s": (4, 6)})


def layer_norm_with_bias(folder: Path, dtype: str) -> Function:
    nodes = [node("LayerNormalization", ["x", "s", "b"], ["y"])]
    return model(folder, dtype, nodes, {"x": (3, 5, 24)}, {"s": (24,), "b": (24,)})


def rms_norm(folder: Path, dtype: str) -> Function:
    """As PyTorch's exporter spells it."""
    nodes = [
        node("Pow", ["x", "two"], ["squares"]),
        node("ReduceMean", ["squares"], ["mean"], axes=[-1]),
        node("Add", ["mean", "epsilon"], ["sum"]),
        node("Sqrt", ["sum"], ["deviation"]),
        node("Reciprocal", ["deviation"], ["inverse"]),
        node("Mul", ["x", "inverse"], ["normed"]),
        node("Mul", ["w", "normed"], ["y"]),
    ]
    return model(folder, dtype, nodes, {"x": (2, 5, 24)}, {"w": (24,)})


def instance_norm(folder: Path, dtype: str) -> Function:
    nodes = [node("InstanceNormalization", ["x", "s", "b"], ["y"])]
    return model(folder, dtype, nodes, {"x": (2, 4, 5, 6)}, {"s": (4,), "b": (4,)})


def batch_norm(folder: Path, dtype: str) -> Function:
    nodes = [node("BatchNormalization", ["x", "s", "b", "mean", "variance"], ["y"])]
    four = dict.fromkeys(("s", "b", "mean", "variance"), (4,))
    return model(folder, dtype, nodes, {"x": (2, 4, 5)}, four)


def regions(function: Function) -> list[Candidate]:
    """The backend's candidates, variants left out."""
    candidates = find_candidates(function, [CudnnBackend()])
    return [
        candidate for candidate in candidates if not candidate.is_host and not candidate.variant
    ]


def holding(function: Function, op: str) -> list[Candidate]:
    """Return the candidates with such a node; there is at least one."""
    nodes = sum(1 << member.index for member in function.graph.nodes if member.op == op)
    candidates = [candidate for candidate in regions(function) if candidate.inside & nodes]
    assert candidates, f"no candidate of cuDNN holds {op}"
    return candidates


def largest(function: Function) -> Candidate:
    """The candidate of most nodes."""
    return max(regions(function), key=lambda candidate: candidate.inside.bit_count())
