"""Translation of ONNX nodes to primitives.

A translator returns the primitives of a node or raises BackendError with the reason. `unsupported` of the
backends calls it, so support and compilation never disagree.
"""

from collections.abc import Callable
from math import prod

import numpy as np

from collage.backends.common.primitives.data_movement import gather, pad, slice_, split
from collage.backends.common.primitives.elementwise import ELEMENTWISE, elementwise
from collage.backends.common.primitives.node_view import MAX_PRIMITIVE_RANK, NodeView
from collage.backends.common.primitives.primitive import Operand, PostOp, RegionPrimitive, reshaped
from collage.backends.common.primitives.spatial import (
    batch_normalization,
    convolution,
    global_pooling,
    local_response,
    pool_everything,
    pooling,
    resize,
    transposed_convolution,
)
from collage.errors import BackendError

REDUCTIONS = {
    "ReduceMean": "mean", "ReduceSum": "sum", "ReduceMax": "max", "ReduceMin": "min",
    "ReduceProd": "mul",
}  # fmt: skip


MAX_COPIES = 16
"""Most copies of one Expand."""

RESHAPES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout")


def matrix_product(view: NodeView) -> list[RegionPrimitive]:
    """Translate MatMul; before a right-hand matrix, the left operand's leading dimensions are joined."""
    left, right = (view.shape(name) for name in view.node.inputs)
    if len(left) < 2 or len(right) < 2:
        raise BackendError("MatMul with a vector")
    if prod(right[:-2]) == 1:
        rows = prod(left[:-1])
        sources = [view.source(0, (rows, left[-1])), view.source(1, right[-2:])]
        return [view.primitive("matmul", sources, shape=(rows, right[-1]))]
    rank = max(len(left), len(right))
    left, right = ((1,) * (rank - len(shape)) + shape for shape in (left, right))
    return [view.primitive("matmul", [view.source(0, left), view.source(1, right)])]


def gemm(view: NodeView) -> list[RegionPrimitive]:
    """Translate Gemm with a constant right operand; alpha and beta are folded into the constants."""
    if view.attributes.integer("transA", 0):
        raise BackendError("Gemm with transA")
    alpha, beta = view.attributes.number("alpha", 1.0), view.attributes.number("beta", 1.0)
    right = view.weight(1, "the right matrix")
    right = right.T if view.attributes.integer("transB", 0) else right
    right = right if alpha == 1.0 else right * np.float32(alpha)
    sources = [view.source(0), Operand(right.shape, array=right)]
    primitive = view.primitive("matmul", sources)
    if view.has(2):
        _add_bias(view, primitive, beta)
    return [primitive]


def _add_bias(view: NodeView, primitive: RegionPrimitive, beta: float) -> None:
    name = view.node.inputs[2]
    if name not in view.function.weights:
        if beta != 1.0:
            raise BackendError("Gemm with beta and a computed summand")
        operand = primitive.fitted(view.source(2))
        primitive.post_ops.append(PostOp("add", operand=operand))
        return
    bias = view.weight(2, "the summand")
    bias = bias if beta == 1.0 else bias * np.float32(beta)
    if bias.ndim < 2 or bias.shape[0] == 1:
        broadcast = np.broadcast_to(bias, (1, primitive.shape[1]))
        primitive.sources = (
            *primitive.sources,
            Operand(broadcast.shape, array=np.ascontiguousarray(broadcast)),
        )
        return
    broadcast = np.ascontiguousarray(np.broadcast_to(bias, primitive.shape))
    primitive.post_ops.append(PostOp("add", operand=Operand(broadcast.shape, array=broadcast)))


def softmax(view: NodeView) -> list[RegionPrimitive]:
    """Translate Softmax and LogSoftmax over one dimension."""
    rank = len(view.result_shape)
    axis = view.attributes.integer("axis", -1 if view.opset >= 13 else 1) % rank
    if view.opset < 13 and axis != rank - 1:
        raise BackendError(f"{view.node.op} of opset {view.opset} over several dimensions")
    algorithm = "softmax_log" if view.node.op == "LogSoftmax" else "softmax_accurate"
    return [view.primitive("softmax", [view.source(0)], {"axis": axis, "algorithm": algorithm})]


def layer_normalization(view: NodeView) -> list[RegionPrimitive]:
    """Translate LayerNormalization over the last dimensions, viewed as rows and columns."""
    if view.is_used(1) or view.is_used(2):
        raise BackendError("LayerNormalization whose mean or deviation is used")
    shape = view.result_shape
    axis = view.attributes.integer("axis", -1) % len(shape)
    rows, columns = prod(shape[:axis]), prod(shape[axis:])
    for position in range(1, len(view.node.inputs)):
        if view.has(position) and prod(view.shape(view.node.inputs[position])) != columns:
            raise BackendError("LayerNormalization with a broadcast scale or bias")
    places = [place for place in (1, 2) if view.has(place)]
    sources = [
        view.source(0, (rows, columns)),
        *(view.source(place, (columns,)) for place in places),
    ]
    epsilon = view.attributes.number("epsilon", 1e-5)
    return [view.primitive("layer_normalization", sources, {"epsilon": epsilon}, (rows, columns))]


def reduction(view: NodeView) -> list[RegionPrimitive]:
    """Translate Reduce operators; a mean or maximum over all spatial dimensions is a pooling."""
    shape = view.shape(view.node.inputs[0])
    axes = view.attributes.integers("axes", ())
    if view.has(1):
        axes = view.constant_integers(1, "the axes")
    if not axes and view.attributes.integer("noop_with_empty_axes", 0):
        raise BackendError(f"{view.node.op} that reduces nothing")
    reduced = {axis % len(shape) for axis in axes} or set(range(len(shape)))
    kind = REDUCTIONS[view.node.op]
    if kind in ("mean", "max") and len(shape) in (4, 5) and reduced == set(range(2, len(shape))):
        algorithm = "pooling_max" if kind == "max" else "pooling_avg_exclude_padding"
        return [pool_everything(view, algorithm)]
    reduced_shape = tuple(1 if axis in reduced else extent for axis, extent in enumerate(shape))
    if reduced_shape == shape:
        return [reshape(view)[0]]
    return [
        view.primitive(
            "reduction", [view.source(0)], {"algorithm": f"reduction_{kind}"}, reduced_shape
        )
    ]


def concatenation(view: NodeView) -> list[RegionPrimitive]:
    """Translate Concat."""
    axis = view.attributes.integer("axis", 0) % len(view.result_shape)
    sources = [view.source(place) for place in range(len(view.node.inputs))]
    return [view.primitive("concat", sources, {"axis": axis})]


def expansion(view: NodeView) -> list[RegionPrimitive]:
    """Translate Expand along one dimension: a concatenation of copies."""
    view.constant_integers(1, "the shape")
    shape, result = view.shape(view.node.inputs[0]), view.result_shape
    padded = (1,) * (len(result) - len(shape)) + shape
    axes = [axis for axis, extent in enumerate(result) if extent != padded[axis]]
    if not axes:
        return [view.primitive("reshape", [view.source(0)])]
    if len(axes) > 1 or result[axes[0]] > MAX_COPIES:
        raise BackendError(f"Expand from {list(shape)} to {list(result)}")
    copies = [view.source(0, padded)] * result[axes[0]]
    return [view.primitive("concat", copies, {"axis": axes[0]})]


def reshape(view: NodeView) -> list[RegionPrimitive]:
    """Translate operators with the same elements in another shape."""
    if view.is_used(1):
        raise BackendError(f"{view.node.op} whose second output is used")
    for position in range(1, len(view.node.inputs)):
        if view.has(position) and view.node.inputs[position] not in view.function.weights:
            raise BackendError(f"an operand of {view.node.op} is computed at run time")
    return [view.primitive("reshape", [view.source(0)])]


def transposition(view: NodeView) -> list[RegionPrimitive]:
    """Translate Transpose: another order of strides, copied only where a reader needs it."""
    rank = len(view.result_shape)
    permutation = view.attributes.integers("perm", range(rank - 1, -1, -1))
    return [view.primitive("permute", [view.source(0)], {"permutation": permutation})]


TRANSLATORS: dict[str, Callable[[NodeView], list[RegionPrimitive]]] = {
    **dict.fromkeys(sorted(ELEMENTWISE), elementwise),
    **dict.fromkeys(REDUCTIONS, reduction),
    **dict.fromkeys(RESHAPES, reshape),
    "AveragePool": pooling,
    "BatchNormalization": batch_normalization,
    "Concat": concatenation,
    "Conv": convolution,
    "ConvTranspose": transposed_convolution,
    "Expand": expansion,
    "Gather": gather,
    "Gemm": gemm,
    "GlobalAveragePool": global_pooling,
    "GlobalMaxPool": global_pooling,
    "LRN": local_response,
    "LayerNormalization": layer_normalization,
    "LogSoftmax": softmax,
    "MatMul": matrix_product,
    "MaxPool": pooling,
    "Pad": pad,
    "Resize": resize,
    "Slice": slice_,
    "Softmax": softmax,
    "Split": split,
    "Transpose": transposition,
    "Upsample": resize,
}


def translate(view: NodeView) -> list[RegionPrimitive]:
    """Return the primitives of the node, in order.

    Raises:
        BackendError: the node cannot run here, with the reason.
    """
    if view.function.onnx_nodes[view.index].domain not in ("", "ai.onnx"):
        raise BackendError(f"oneDNN has no {view.node.op}")
    translator = TRANSLATORS.get(view.node.op)
    if translator is None:
        raise BackendError(f"oneDNN has no {view.node.op}")
    primitives = translator(view)
    for primitive in primitives:
        if len(primitive.shape) > MAX_PRIMITIVE_RANK:
            raise BackendError(
                f"{primitive.result!r} has rank {len(primitive.shape)}, more than {MAX_PRIMITIVE_RANK}"
            )
    return primitives


def bias_source(primitive: RegionPrimitive, operand: Operand) -> Operand | None:
    """View a constant summand per channel as the primitive's bias; None for any other operand.

    The channel of a convolution is its second dimension, that of a matrix product the last.
    """
    fitted = primitive.fitted(operand)
    if fitted is None or fitted.array is None or primitive.post_ops:
        return None
    if (
        primitive.op == "matmul"
        and len(primitive.shape) == 2
        and fitted.shape == (1, primitive.shape[1])
    ):
        return fitted if len(primitive.sources) == 2 else None
    if primitive.op in ("convolution", "deconvolution") and len(primitive.sources) == 2:
        channels = primitive.shape[1]
        if fitted.array.size == channels == fitted.shape[1]:
            return reshaped(fitted, (channels,))
    return None
