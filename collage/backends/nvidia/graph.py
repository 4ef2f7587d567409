"""Operators of both graph backends on a GPU (ONNX Runtime's CUDA provider and TensorRT)."""

from collage.backends.nvidia.product import known_type
from collage.errors import BackendError
from collage.frontend.model import Function

ELEMENTWISE = frozenset({
    "Abs", "Add", "And", "Cast", "Ceil", "Clip", "Cos", "Div", "Elu", "Equal", "Erf", "Exp", "Floor",
    "Gelu", "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "IsNaN", "LeakyRelu", "Less",
    "LessOrEqual", "Log", "Max", "Min", "Mod", "Mul", "Neg", "Not", "Or", "Pow", "PRelu",
    "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Softplus", "Softsign", "Sqrt",
    "Sub", "Sum", "Tanh", "ThresholdedRelu", "Where", "Xor",
})  # fmt: skip
MOVES = frozenset({
    "Concat", "DepthToSpace", "Dropout", "Expand", "Flatten", "Gather", "GatherElements", "GatherND",
    "Identity", "Pad", "Reshape", "ScatterElements", "ScatterND", "Slice", "SpaceToDepth", "Split",
    "Squeeze", "Tile", "Transpose", "Unsqueeze", "Resize", "Upsample",
})  # fmt: skip
REDUCTIONS = frozenset({
    "ArgMax", "ArgMin", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax",
    "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Softmax", "LogSoftmax",
    "LayerNormalization", "InstanceNormalization", "BatchNormalization", "LRN", "CumSum", "TopK",
})  # fmt: skip
HEAVY = frozenset({
    "AveragePool", "Conv", "ConvTranspose", "Einsum", "GRU", "Gemm", "GlobalAveragePool",
    "GlobalMaxPool", "LSTM", "MatMul", "MaxPool", "RNN",
})  # fmt: skip
COMMON = ELEMENTWISE | MOVES | REDUCTIONS | HEAVY
"""Operators of the standard domain with a GPU kernel in both toolchains."""


def refusal(
    function: Function,
    index: int,
    toolchain: str,
    *,
    dtypes: frozenset[str],
    extra_operators: frozenset[str] = frozenset(),
) -> str | None:
    """Return why a toolchain does not take the node, None where it does.

    Values with a data-dependent shape are refused: the device would wait for the host.

    Args:
        function: function of the node.
        index: the node.
        toolchain: the toolchain's name in reasons.
        dtypes: dtypes of the toolchain.
        extra_operators: operators of the toolchain beside `COMMON` (default: none).
    """
    node = function.graph.nodes[index]
    domain = function.onnx_nodes[index].domain
    if domain not in ("", "ai.onnx"):
        return f"{domain}.{node.op} is not of the standard operator set"
    if node.op not in COMMON and node.op not in extra_operators:
        return f"{toolchain} is not known to have {node.op} on the GPU"
    try:
        for name in filter(None, (*node.inputs, *node.outputs)):
            if (dtype := known_type(function, name).dtype) not in dtypes:
                return f"{name!r} is {dtype}, which {toolchain} does not take"
    except BackendError as error:
        return str(error)
    return None
