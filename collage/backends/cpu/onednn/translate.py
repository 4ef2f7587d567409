"""From ONNX nodes to drafts of oneDNN steps.

A translator takes a node and returns its drafts, or raises BackendError with the reason: what it
cannot say is what the backend does not support, so the two never disagree.
"""

from collections.abc import Callable
from math import prod

import numpy as np

from collage.backends.cpu.onednn.elementwise import ELEMENTWISE, elementwise
from collage.backends.cpu.onednn.pieces import gathering, padding, piece, split
from collage.backends.cpu.onednn.program import Draft, Post, Source, seen_as
from collage.backends.cpu.onednn.view import MAX_RANK, NodeView
from collage.backends.cpu.onednn.windows import (
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
"""Copies that an Expand may make."""

RESHAPES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout")


def matrix_product(view: NodeView) -> list[Draft]:
    """MatMul: with a matrix on the right, the left's leading dimensions are one."""
    left, right = (view.shape(name) for name in view.node.inputs)
    if len(left) < 2 or len(right) < 2:
        raise BackendError("MatMul with a vector")
    if prod(right[:-2]) == 1:
        rows = prod(left[:-1])
        sources = [view.source(0, (rows, left[-1])), view.source(1, right[-2:])]
        return [view.draft("matmul", sources, shape=(rows, right[-1]))]
    rank = max(len(left), len(right))
    left, right = ((1,) * (rank - len(one)) + one for one in (left, right))
    return [view.draft("matmul", [view.source(0, left), view.source(1, right)])]


def gemm(view: NodeView) -> list[Draft]:
    """Gemm with a constant right side; its factors go into the constants."""
    if view.integer("transA", 0):
        raise BackendError("Gemm with transA")
    alpha, beta = view.number("alpha", 1.0), view.number("beta", 1.0)
    right = view.weight(1, "the right matrix")
    right = right.T if view.integer("transB", 0) else right
    right = right if alpha == 1.0 else right * np.float32(alpha)
    sources = [view.source(0), Source(right.shape, array=right)]
    draft = view.draft("matmul", sources)
    if view.has(2):
        _add_bias(view, draft, beta)
    return [draft]


def _add_bias(view: NodeView, draft: Draft, beta: float) -> None:
    name = view.node.inputs[2]
    if name not in view.function.weights:
        if beta != 1.0:
            raise BackendError("Gemm with beta and a computed summand")
        operand = draft.fitted(view.source(2))
        draft.posts.append(Post("add", operand=operand))
        return
    bias = view.weight(2, "the summand")
    bias = bias if beta == 1.0 else bias * np.float32(beta)
    if bias.ndim < 2 or bias.shape[0] == 1:
        whole = np.broadcast_to(bias, (1, draft.shape[1]))
        draft.sources = (*draft.sources, Source(whole.shape, array=np.ascontiguousarray(whole)))
        return
    whole = np.ascontiguousarray(np.broadcast_to(bias, draft.shape))
    draft.posts.append(Post("add", operand=Source(whole.shape, array=whole)))


def softmax(view: NodeView) -> list[Draft]:
    """Softmax and LogSoftmax over one dimension."""
    rank = len(view.result_shape)
    axis = view.integer("axis", -1 if view.opset >= 13 else 1) % rank
    if view.opset < 13 and axis != rank - 1:
        raise BackendError(f"{view.node.op} of opset {view.opset} over several dimensions")
    algorithm = "softmax_log" if view.node.op == "LogSoftmax" else "softmax_accurate"
    return [view.draft("softmax", [view.source(0)], {"axis": axis, "algorithm": algorithm})]


def layer_normalization(view: NodeView) -> list[Draft]:
    """LayerNormalization over the last dimensions, as one of rows and columns."""
    if view.is_used(1) or view.is_used(2):
        raise BackendError("LayerNormalization whose mean or deviation is used")
    shape = view.result_shape
    axis = view.integer("axis", -1) % len(shape)
    rows, columns = prod(shape[:axis]), prod(shape[axis:])
    for position in range(1, len(view.node.inputs)):
        if view.has(position) and prod(view.shape(view.node.inputs[position])) != columns:
            raise BackendError("LayerNormalization with a broadcast scale or bias")
    places = [place for place in (1, 2) if view.has(place)]
    sources = [view.source(0, (rows, columns)), *(view.source(one, (columns,)) for one in places)]
    epsilon = view.number("epsilon", 1e-5)
    return [view.draft("layer_normalization", sources, {"epsilon": epsilon}, (rows, columns))]


def reduction(view: NodeView) -> list[Draft]:
    """Reduce operators; a mean or maximum over all spatial dimensions is a pooling."""
    shape = view.shape(view.node.inputs[0])
    axes = view.integers("axes", ())
    if view.has(1):
        axes = view.constant_integers(1, "the axes")
    if not axes and view.integer("noop_with_empty_axes", 0):
        raise BackendError(f"{view.node.op} that reduces nothing")
    reduced = {axis % len(shape) for axis in axes} or set(range(len(shape)))
    kind = REDUCTIONS[view.node.op]
    if kind in ("mean", "max") and len(shape) in (4, 5) and reduced == set(range(2, len(shape))):
        algorithm = "pooling_max" if kind == "max" else "pooling_avg_exclude_padding"
        return [pool_everything(view, algorithm)]
    kept = tuple(1 if axis in reduced else extent for axis, extent in enumerate(shape))
    if kept == shape:
        return [reshape(view)[0]]
    return [view.draft("reduction", [view.source(0)], {"algorithm": f"reduction_{kind}"}, kept)]


def concatenation(view: NodeView) -> list[Draft]:
    """Concat."""
    axis = view.integer("axis", 0) % len(view.result_shape)
    sources = [view.source(place) for place in range(len(view.node.inputs))]
    return [view.draft("concat", sources, {"axis": axis})]


def expansion(view: NodeView) -> list[Draft]:
    """Expand along one dimension, as a concatenation of copies."""
    view.constant_integers(1, "the shape")
    shape, result = view.shape(view.node.inputs[0]), view.result_shape
    padded = (1,) * (len(result) - len(shape)) + shape
    axes = [axis for axis, one in enumerate(result) if one != padded[axis]]
    if not axes:
        return [view.draft("reshape", [view.source(0)])]
    if len(axes) > 1 or result[axes[0]] > MAX_COPIES:
        raise BackendError(f"Expand from {list(shape)} to {list(result)}")
    copies = [view.source(0, padded)] * result[axes[0]]
    return [view.draft("concat", copies, {"axis": axes[0]})]


def reshape(view: NodeView) -> list[Draft]:
    """Operators that give the same elements another shape."""
    if view.is_used(1):
        raise BackendError(f"{view.node.op} whose second output is used")
    for position in range(1, len(view.node.inputs)):
        if view.has(position) and view.node.inputs[position] not in view.function.weights:
            raise BackendError(f"an operand of {view.node.op} is computed at run time")
    return [view.draft("reshape", [view.source(0)])]


def transposition(view: NodeView) -> list[Draft]:
    """Transpose: another order of strides, copied only where a reader needs it."""
    rank = len(view.result_shape)
    permutation = view.integers("perm", range(rank - 1, -1, -1))
    return [view.draft("permute", [view.source(0)], {"permutation": permutation})]


TRANSLATORS: dict[str, Callable[[NodeView], list[Draft]]] = {
    **dict.fromkeys(sorted(ELEMENTWISE), elementwise),
    **dict.fromkeys(REDUCTIONS, reduction),
    **dict.fromkeys(RESHAPES, reshape),
    "AveragePool": pooling,
    "BatchNormalization": batch_normalization,
    "Concat": concatenation,
    "Conv": convolution,
    "ConvTranspose": transposed_convolution,
    "Expand": expansion,
    "Gather": gathering,
    "Gemm": gemm,
    "GlobalAveragePool": global_pooling,
    "GlobalMaxPool": global_pooling,
    "LRN": local_response,
    "LayerNormalization": layer_normalization,
    "LogSoftmax": softmax,
    "MatMul": matrix_product,
    "MaxPool": pooling,
    "Pad": padding,
    "Resize": resize,
    "Slice": piece,
    "Softmax": softmax,
    "Split": split,
    "Transpose": transposition,
    "Upsample": resize,
}


def translate(view: NodeView) -> list[Draft]:
    """Return the drafts that make the node's outputs, in order.

    Raises:
        BackendError: the node cannot run here, with the reason.
    """
    if view.function.onnx_nodes[view.index].domain not in ("", "ai.onnx"):
        raise BackendError(f"oneDNN has no {view.node.op}")
    translator = TRANSLATORS.get(view.node.op)
    if translator is None:
        raise BackendError(f"oneDNN has no {view.node.op}")
    drafts = translator(view)
    for draft in drafts:
        if len(draft.shape) > MAX_RANK:
            raise BackendError(
                f"{draft.result!r} has rank {len(draft.shape)}, more than {MAX_RANK}"
            )
    return drafts


def bias_source(draft: Draft, operand: Source) -> Source | None:
    """View a constant summand per channel as the step's bias; None when it is none.

    The channel of a convolution is its second dimension, that of a matrix product the last.
    """
    fitted = draft.fitted(operand)
    if fitted is None or fitted.array is None or draft.posts:
        return None
    if draft.op == "matmul" and len(draft.shape) == 2 and fitted.shape == (1, draft.shape[1]):
        return fitted if len(draft.sources) == 2 else None
    if draft.op in ("convolution", "deconvolution") and len(draft.sources) == 2:
        channels = draft.shape[1]
        if fitted.array.size == channels == fitted.shape[1]:
            return seen_as(fitted, (channels,))
    return None
