"""Spatial operators: convolutions, pooling, normalisation over channels, resizing."""

from math import isclose, prod

import numpy as np

from collage.backends.common.primitives.node_view import NodeView
from collage.backends.common.primitives.primitive import Operand, PostOp, RegionPrimitive, Shape
from collage.backends.common.window import Window
from collage.errors import BackendError
from collage.runtime.blob import Json

SPATIAL_RANKS = (1, 2, 3)


def window_attributes(window: Window) -> dict[str, Json]:
    """Return the window in oneDNN's form; its dilations count from 0."""
    return {
        "strides": window.strides,
        "dilations": tuple(dilation - 1 for dilation in window.dilations),
        "pads_begin": window.pads_begin,
        "pads_end": window.pads_end,
    }


def read_window(view: NodeView, kernel: Shape, size: Shape, result: Shape) -> Window:
    """Read the window of a node.

    Args:
        view: the node.
        kernel: extents of the window.
        size: spatial extents of the input.
        result: spatial extents of the result.
    """
    rank = len(kernel)
    if rank not in SPATIAL_RANKS:
        raise BackendError(f"{view.node.op} over {rank} dimensions")
    strides = view.attributes.integers("strides", [1] * rank)
    dilations = view.attributes.integers("dilations", [1] * rank)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    automatic = view.attributes.text("auto_pad", "NOTSET")
    begin = view.attributes.integers("pads", [0] * (2 * rank))[:rank]
    # Pads at the end follow from the result: they include ceil_mode and auto_pad, and exclude elements
    # after the last window.
    total = [(o - 1) * s + r - n for o, s, r, n in zip(result, strides, reach, size, strict=True)]
    if automatic.startswith("SAME"):
        upper = automatic == "SAME_UPPER"
        begin = tuple(max(pads, 0) // 2 if upper else (max(pads, 0) + 1) // 2 for pads in total)
    end = tuple(max(pads - first, 0) for pads, first in zip(total, begin, strict=True))
    return Window(kernel, strides, dilations, begin, pads_end=end)


def convolution(view: NodeView) -> list[RegionPrimitive]:
    """Translate Conv; grouped weights become (groups, channels out, channels in, ...)."""
    shape, weight = view.shape(view.node.inputs[0]), view.weight(1, "the weight")
    groups = view.attributes.integer("group", 1)
    window = read_window(view, weight.shape[2:], shape[2:], view.result_shape[2:])
    if groups > 1:
        weight = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
    sources = [view.source(0), Operand(weight.shape, array=weight), *_bias(view)]
    return [view.primitive("convolution", sources, window_attributes(window))]


def transposed_convolution(view: NodeView) -> list[RegionPrimitive]:
    """Translate ConvTranspose: the window slides over the result."""
    shape, weight = view.shape(view.node.inputs[0]), view.weight(1, "the weight")
    groups = view.attributes.integer("group", 1)
    if view.attributes.text("auto_pad", "NOTSET") != "NOTSET" or "output_shape" in view.attributes:
        raise BackendError("ConvTranspose with auto_pad or output_shape")
    window = read_window(view, weight.shape[2:], view.result_shape[2:], shape[2:])
    grouped = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:]).swapaxes(1, 2)
    array = grouped if groups > 1 else grouped[0]
    sources = [view.source(0), Operand(array.shape, array=array), *_bias(view)]
    return [view.primitive("deconvolution", sources, window_attributes(window))]


def _bias(view: NodeView) -> list[Operand]:
    if not view.has(2):
        return []
    bias = view.weight(2, "the bias")
    return [Operand(bias.shape, array=bias)]


def pooling(view: NodeView) -> list[RegionPrimitive]:
    """Translate MaxPool and AveragePool."""
    shape = view.shape(view.node.inputs[0])
    if view.is_used(1):
        raise BackendError("MaxPool whose second output is used")
    if view.attributes.integer("storage_order", 0):
        raise BackendError("MaxPool with storage_order 1")
    kernel = view.attributes.integers("kernel_shape", ())
    pads = view.attributes.integers("pads", [0] * (2 * len(kernel)))
    covers = all(k >= n for k, n in zip(kernel, shape[2:], strict=True))
    if covers and set(view.result_shape[2:]) == {1} and not any(pads):
        return global_pooling(view)  # with ceil_mode, kernels may extend past the end
    window = read_window(view, kernel, shape[2:], view.result_shape[2:])
    if view.node.op == "MaxPool":
        algorithm = "pooling_max"
    elif view.attributes.integer("count_include_pad", 0):
        if any(e > p for e, p in zip(window.pads_end, pads[len(kernel) :], strict=True)):
            raise BackendError("AveragePool with ceil_mode that counts the pads")
        algorithm = "pooling_avg_include_padding"
    else:
        algorithm = "pooling_avg_exclude_padding"
    return [_pool(view, algorithm, window, view.result_shape)]


def _pool(view: NodeView, algorithm: str, window: Window, shape: Shape) -> RegionPrimitive:
    attributes = {**window_attributes(window), "kernel": window.kernel, "algorithm": algorithm}
    return view.primitive("pooling", [view.source(0)], attributes, shape)


def global_pooling(view: NodeView) -> list[RegionPrimitive]:
    """Translate a pooling with one window."""
    kind = "max" if view.node.op in ("GlobalMaxPool", "MaxPool") else "avg_exclude_padding"
    return [pool_everything(view, f"pooling_{kind}")]


def pool_everything(view: NodeView, algorithm: str) -> RegionPrimitive:
    """Return one window over all spatial dimensions: unlike a reduction, it keeps a blocked layout."""
    shape = view.shape(view.node.inputs[0])
    rank = len(shape) - 2
    if rank not in SPATIAL_RANKS:
        raise BackendError(f"{view.node.op} over {rank} dimensions")
    units, zeros = (1,) * rank, (0,) * rank
    return _pool(
        view, algorithm, Window(shape[2:], units, units, zeros, pads_end=zeros), shape[:2] + units
    )


def local_response(view: NodeView) -> list[RegionPrimitive]:
    """Translate LRN across channels; oneDNN divides alpha by the size, like ONNX."""
    attributes: dict[str, Json] = {
        "size": view.attributes.integer("size", 1),
        "alpha": view.attributes.number("alpha", 1e-4),
        "beta": view.attributes.number("beta", 0.75),
        "bias": view.attributes.number("bias", 1.0),
    }
    return [view.primitive("lrn", [view.source(0)], attributes)]


def batch_normalization(view: NodeView) -> list[RegionPrimitive]:
    """Translate BatchNormalization at inference: a factor and a summand per channel."""
    if view.attributes.integer("training_mode", 0) or any(
        view.is_used(position) for position in (1, 2, 3, 4)
    ):
        raise BackendError("BatchNormalization in training mode")
    scale, shift, mean, variance = (
        view.weight(position, "a parameter") for position in (1, 2, 3, 4)
    )
    factor = scale / np.sqrt(variance + np.float32(view.attributes.number("epsilon", 1e-5)))
    summand = shift - mean * factor
    shape = (1, factor.size) + (1,) * (len(view.result_shape) - 2)
    factors, summands = (
        Operand(shape, array=array.astype(np.float32).reshape(shape)) for array in (factor, summand)
    )
    primitive = view.primitive("binary", [view.source(0), factors], {"algorithm": "mul"})
    primitive.post_ops.append(PostOp("add", operand=summands))
    return [primitive]


def resize(view: NodeView) -> list[RegionPrimitive]:
    """Translate Resize and Upsample of spatial dimensions where oneDNN's formula equals ONNX's."""
    shape, result = view.shape(view.node.inputs[0]), view.result_shape
    mode = view.attributes.text("mode", "nearest")
    if len(shape) not in (3, 4, 5) or shape[:2] != result[:2]:
        raise BackendError(f"Resize from {list(shape)} to {list(result)}")
    if (
        view.attributes.integer("antialias", 0)
        or view.attributes.text("keep_aspect_ratio_policy", "stretch") != "stretch"
    ):
        raise BackendError("Resize with antialias or a policy of aspect ratios")
    _check_scales(view, shape, result)
    if mode == "nearest":
        _check_nearest(view, shape, result)
    elif mode != "linear" or view.attributes.text("coordinate_transformation_mode", "half_pixel") not in (
        "half_pixel", "pytorch_half_pixel",
    ):  # fmt: skip
        raise BackendError(f"Resize in mode {mode} with other coordinates than half_pixel")
    elif view.attributes.text(
        "coordinate_transformation_mode", "half_pixel"
    ) != "half_pixel" and any(extent == 1 for extent in result[2:]):
        raise BackendError("Resize to one pixel with pytorch_half_pixel")
    return [view.primitive("resampling", [view.source(0)], {"algorithm": f"resampling_{mode}"})]


def _check_scales(view: NodeView, shape: Shape, result: Shape) -> None:
    """Refuse scales unequal to the quotient of the sizes: they move the coordinates."""
    position = 1 if view.node.op == "Upsample" else 2
    if not view.has(position) or prod(view.function.weights.get(
        view.node.inputs[position], np.zeros(1)).shape) == 0:  # fmt: skip
        return
    scales = view.weight(position, "the scales").reshape(-1)
    if len(scales) != len(shape) or not all(
        isclose(scale, r / s, rel_tol=1e-6)
        for scale, s, r in zip(scales.tolist(), shape, result, strict=True)
    ):
        raise BackendError("Resize by scales that the sizes do not have exactly")


def _check_nearest(view: NodeView, shape: Shape, result: Shape) -> None:
    """Refuse factors and rounding modes with another nearest pixel than oneDNN's."""
    if any(r % s for s, r in zip(shape, result, strict=True)):
        raise BackendError("Resize to the nearest pixel by a factor that is not whole")
    coordinates = view.attributes.text("coordinate_transformation_mode", "half_pixel")
    rounding = view.attributes.text("nearest_mode", "round_prefer_floor")
    half = coordinates in ("half_pixel", "pytorch_half_pixel") and rounding.startswith("round")
    plain = coordinates == "asymmetric" and rounding == "floor"
    if not (half or plain or view.node.op == "Upsample"):
        raise BackendError(f"Resize to the nearest pixel with {coordinates} and {rounding}")
