"""Operators that slide a window: convolutions, pooling, local response normalisation, resizing."""

from dataclasses import dataclass
from math import isclose, prod

import numpy as np

from collage.backends.cpu.onednn.program import Draft, Post, Shape, Source
from collage.backends.cpu.onednn.view import NodeView
from collage.errors import BackendError
from collage.runtime.blob import Json

SPATIAL_RANKS = (1, 2, 3)


@dataclass(frozen=True)
class Window:
    """Where a window goes, one entry per spatial dimension."""

    kernel: Shape
    strides: Shape
    dilations: Shape
    pads_begin: Shape
    pads_end: Shape

    def attributes(self) -> dict[str, Json]:
        """As oneDNN has them, which counts dilations from 0."""
        return {
            "strides": self.strides,
            "dilations": tuple(one - 1 for one in self.dilations),
            "pads_begin": self.pads_begin,
            "pads_end": self.pads_end,
        }


def window(view: NodeView, kernel: Shape, size: Shape, result: Shape) -> Window:
    """Read strides, dilations and pads of a window of `kernel` from spatial `size` to `result`."""
    rank = len(kernel)
    if rank not in SPATIAL_RANKS:
        raise BackendError(f"{view.node.op} over {rank} dimensions")
    strides = view.integers("strides", [1] * rank)
    dilations = view.integers("dilations", [1] * rank)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    automatic = view.text("auto_pad", "NOTSET")
    begin = view.integers("pads", [0] * (2 * rank))[:rank]
    # The end follows from the result: it holds what ceil_mode and auto_pad add, and not what the
    # last window leaves over.
    total = [(o - 1) * s + r - n for o, s, r, n in zip(result, strides, reach, size, strict=True)]
    if automatic.startswith("SAME"):
        upper = automatic == "SAME_UPPER"
        begin = tuple(max(one, 0) // 2 if upper else (max(one, 0) + 1) // 2 for one in total)
    end = tuple(max(one - first, 0) for one, first in zip(total, begin, strict=True))
    return Window(kernel, strides, dilations, begin, end)


def convolution(view: NodeView) -> list[Draft]:
    """Conv: weights become (groups, channels out, channels in, ...) where there are groups."""
    shape, weight = view.shape(view.node.inputs[0]), view.weight(1, "the weight")
    groups = view.integer("group", 1)
    sides = window(view, weight.shape[2:], shape[2:], view.result_shape[2:])
    if groups > 1:
        weight = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
    sources = [view.source(0), Source(weight.shape, array=weight), *_bias(view)]
    return [view.draft("convolution", sources, sides.attributes())]


def transposed_convolution(view: NodeView) -> list[Draft]:
    """ConvTranspose: the window goes over the result."""
    shape, weight = view.shape(view.node.inputs[0]), view.weight(1, "the weight")
    groups = view.integer("group", 1)
    if view.text("auto_pad", "NOTSET") != "NOTSET" or "output_shape" in view.attributes:
        raise BackendError("ConvTranspose with auto_pad or output_shape")
    sides = window(view, weight.shape[2:], view.result_shape[2:], shape[2:])
    grouped = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:]).swapaxes(1, 2)
    array = grouped if groups > 1 else grouped[0]
    sources = [view.source(0), Source(array.shape, array=array), *_bias(view)]
    return [view.draft("deconvolution", sources, sides.attributes())]


def _bias(view: NodeView) -> list[Source]:
    if not view.has(2):
        return []
    bias = view.weight(2, "the bias")
    return [Source(bias.shape, array=bias)]


def pooling(view: NodeView) -> list[Draft]:
    """MaxPool and AveragePool."""
    shape = view.shape(view.node.inputs[0])
    if view.is_used(1):
        raise BackendError("MaxPool whose second output is used")
    if view.integer("storage_order", 0):
        raise BackendError("MaxPool with storage_order 1")
    kernel = view.integers("kernel_shape", ())
    pads = view.integers("pads", [0] * (2 * len(kernel)))
    covers = all(k >= n for k, n in zip(kernel, shape[2:], strict=True))
    if covers and set(view.result_shape[2:]) == {1} and not any(pads):
        return global_pooling(view)  # kernels may reach beyond the end with ceil_mode
    sides = window(view, kernel, shape[2:], view.result_shape[2:])
    if view.node.op == "MaxPool":
        algorithm = "pooling_max"
    elif view.integer("count_include_pad", 0):
        if any(e > p for e, p in zip(sides.pads_end, pads[len(kernel) :], strict=True)):
            raise BackendError("AveragePool with ceil_mode that counts the pads")
        algorithm = "pooling_avg_include_padding"
    else:
        algorithm = "pooling_avg_exclude_padding"
    return [_pool(view, algorithm, sides, view.result_shape)]


def _pool(view: NodeView, algorithm: str, sides: Window, shape: Shape) -> Draft:
    attributes = {**sides.attributes(), "kernel": sides.kernel, "algorithm": algorithm}
    return view.draft("pooling", [view.source(0)], attributes, shape)


def global_pooling(view: NodeView) -> list[Draft]:
    """A pooling with one window."""
    kind = "max" if view.node.op in ("GlobalMaxPool", "MaxPool") else "avg_exclude_padding"
    return [pool_everything(view, f"pooling_{kind}")]


def pool_everything(view: NodeView, algorithm: str) -> Draft:
    """One window over all spatial dimensions: keeps a blocked layout, unlike a reduction."""
    shape = view.shape(view.node.inputs[0])
    rank = len(shape) - 2
    if rank not in SPATIAL_RANKS:
        raise BackendError(f"{view.node.op} over {rank} dimensions")
    ones, zeros = (1,) * rank, (0,) * rank
    return _pool(view, algorithm, Window(shape[2:], ones, ones, zeros, zeros), shape[:2] + ones)


def local_response(view: NodeView) -> list[Draft]:
    """LRN across channels; oneDNN divides alpha by the size as ONNX does."""
    attributes: dict[str, Json] = {
        "size": view.integer("size", 1),
        "alpha": view.number("alpha", 1e-4),
        "beta": view.number("beta", 0.75),
        "bias": view.number("bias", 1.0),
    }
    return [view.draft("lrn", [view.source(0)], attributes)]


def batch_normalization(view: NodeView) -> list[Draft]:
    """BatchNormalization at inference: a factor and a summand per channel."""
    if view.integer("training_mode", 0) or any(view.is_used(one) for one in (1, 2, 3, 4)):
        raise BackendError("BatchNormalization in training mode")
    scale, shift, mean, variance = (view.weight(one, "a parameter") for one in (1, 2, 3, 4))
    factor = scale / np.sqrt(variance + np.float32(view.number("epsilon", 1e-5)))
    summand = shift - mean * factor
    shape = (1, factor.size) + (1,) * (len(view.result_shape) - 2)
    factors, summands = (
        Source(shape, array=one.astype(np.float32).reshape(shape)) for one in (factor, summand)
    )
    draft = view.draft("binary", [view.source(0), factors], {"algorithm": "mul"})
    draft.posts.append(Post("add", operand=summands))
    return [draft]


def resize(view: NodeView) -> list[Draft]:
    """Resize and Upsample of the spatial dimensions, where oneDNN computes ONNX's formula."""
    shape, result = view.shape(view.node.inputs[0]), view.result_shape
    mode = view.text("mode", "nearest")
    if len(shape) not in (3, 4, 5) or shape[:2] != result[:2]:
        raise BackendError(f"Resize from {list(shape)} to {list(result)}")
    if (
        view.integer("antialias", 0)
        or view.text("keep_aspect_ratio_policy", "stretch") != "stretch"
    ):
        raise BackendError("Resize with antialias or a policy of aspect ratios")
    _check_scales(view, shape, result)
    if mode == "nearest":
        _check_nearest(view, shape, result)
    elif mode != "linear" or view.text("coordinate_transformation_mode", "half_pixel") not in (
        "half_pixel", "pytorch_half_pixel",
    ):  # fmt: skip
        raise BackendError(f"Resize in mode {mode} with other coordinates than half_pixel")
    elif view.text("coordinate_transformation_mode", "half_pixel") != "half_pixel" and any(
        one == 1 for one in result[2:]
    ):
        raise BackendError("Resize to one pixel with pytorch_half_pixel")
    return [view.draft("resampling", [view.source(0)], {"algorithm": f"resampling_{mode}"})]


def _check_scales(view: NodeView, shape: Shape, result: Shape) -> None:
    """A scale that is not the quotient of the sizes moves the coordinates."""
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
    """By a whole factor, every way to round gives the pixel that oneDNN takes, but for these."""
    if any(r % s for s, r in zip(shape, result, strict=True)):
        raise BackendError("Resize to the nearest pixel by a factor that is not whole")
    coordinates = view.text("coordinate_transformation_mode", "half_pixel")
    rounding = view.text("nearest_mode", "round_prefer_floor")
    half = coordinates in ("half_pixel", "pytorch_half_pixel") and rounding.startswith("round")
    plain = coordinates == "asymmetric" and rounding == "floor"
    if not (half or plain or view.node.op == "Upsample"):
        raise BackendError(f"Resize to the nearest pixel with {coordinates} and {rounding}")
