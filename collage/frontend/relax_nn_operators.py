"""The ONNX form of each Relax operator of neural networks: convolutions, pools, normalisations, activations.

Layouts other than ONNX's (`NCHW`, `OIHW`) are transposed around the node. Operators that differ in training
have the form of inference; a call that asks for training is refused.
"""

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from collage.frontend.relax_graph import GraphWriter, Operator
from collage.frontend.relax_operators import Translation

_SPATIAL = {1: "W", 2: "HW", 3: "DHW"}
"""Letters of spatial axes in ONNX's order, by their number."""

_PAD_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}

_RESIZE_METHODS = {"nearest_neighbor": "nearest", "linear": "linear", "cubic": "cubic"}

_NEAREST = {
    "round": "round_prefer_ceil", "round_prefer_floor": "round_prefer_floor",
    "round_prefer_ceil": "round_prefer_ceil", "floor": "floor", "ceil": "ceil",
}  # fmt: skip


def _order(source: str, target: str, operator: Operator) -> list[int]:
    """Return the axes that bring the layout `source` into `target`. Raises Untranslatable."""
    operator.require(sorted(source) == sorted(target), f"of layout {source}")
    return [source.index(letter) for letter in target]


def _data_layouts(operator: Operator, attribute: str) -> tuple[str, str]:
    """Return the layout of data, and ONNX's with as many axes. Raises Untranslatable."""
    layout = str(getattr(operator.attributes, attribute))
    out_layout = str(operator.attributes.out_layout or layout)
    operator.require(out_layout == layout, f"of out_layout {out_layout}")
    spatial = _SPATIAL.get(len(layout) - 2, "")
    return layout, f"NC{spatial}"


def _convolution(onnx_operator: str, kernel_axes: str) -> Translation:
    """Translate a convolution whose kernels have the axes `kernel_axes` before the spatial ones in ONNX."""

    def write(writer: GraphWriter, operator: Operator) -> list[str]:
        attributes = operator.attributes
        operator.require_input_dtype("out_dtype")
        layout, standard = _data_layouts(operator, "data_layout")
        kernel_layout = str(attributes.kernel_layout)
        data, kernel = operator.operands(writer)
        data = writer.transpose(data, _order(layout, standard, operator))
        kernel_order = _order(kernel_layout, kernel_axes + standard[2:], operator)
        kernel = writer.transpose(kernel, kernel_order)
        kernel_shape = [operator.inputs[1].shape[axis] for axis in kernel_order]
        extra = {}
        if onnx_operator == "ConvTranspose":
            extra["output_padding"] = operator.integers("output_padding")
        result = writer.add(
            onnx_operator,
            [data, kernel],
            kernel_shape=kernel_shape[2:],
            strides=operator.integers("strides"),
            pads=operator.integers("padding"),
            dilations=operator.integers("dilation"),
            group=int(attributes.groups),
            **extra,
        )
        return [writer.transpose(result, _order(standard, layout, operator))]

    return write


def _pool(onnx_operator: str) -> Translation:
    def write(writer: GraphWriter, operator: Operator) -> list[str]:
        attributes = operator.attributes
        layout, standard = _data_layouts(operator, "layout")
        data = writer.transpose(operator.operand(writer, 0), _order(layout, standard, operator))
        extra = {}
        if onnx_operator == "AveragePool":
            extra["count_include_pad"] = int(bool(attributes.count_include_pad))
        result = writer.add(
            onnx_operator,
            [data],
            kernel_shape=operator.integers("pool_size"),
            strides=operator.integers("strides"),
            pads=operator.integers("padding"),
            dilations=operator.integers("dilation"),
            ceil_mode=int(bool(attributes.ceil_mode)),
            **extra,
        )
        return [writer.transpose(result, _order(standard, layout, operator))]

    return write


def _adaptive_avg_pool(writer: GraphWriter, operator: Operator) -> list[str]:
    """Windows of an adaptive pool are equal only where the sizes divide."""
    layout, standard = _data_layouts(operator, "layout")
    order = _order(layout, standard, operator)
    sizes = [operator.inputs[0].shape[axis] for axis in order[2:]]
    outputs = [operator.result.shape[axis] for axis in order[2:]]
    windows = [size // max(1, output) for size, output in zip(sizes, outputs, strict=True)]
    are_equal = all(
        w * output == size for w, output, size in zip(windows, outputs, sizes, strict=True)
    )
    operator.require(are_equal, f"from {sizes} to {outputs}, with unequal windows")
    data = writer.transpose(operator.operand(writer, 0), order)
    if set(outputs) == {1}:
        result = writer.add("GlobalAveragePool", [data])
    else:
        result = writer.add("AveragePool", [data], kernel_shape=windows, strides=windows)
    return [writer.transpose(result, _order(standard, layout, operator))]


def _require_affine(operator: Operator) -> None:
    attributes = operator.attributes
    operator.require(bool(attributes.center) and bool(attributes.scale), "without centre or scale")


def _batch_norm(writer: GraphWriter, operator: Operator) -> list[str]:
    attributes, operands = operator.attributes, operator.operands(writer)
    operator.require(not attributes.training, "of training=True (translate it with training=False)")
    _require_affine(operator)
    rank = len(operator.inputs[0].shape)
    axis = int(attributes.axis) % rank
    order = [0, axis, *(other for other in range(1, rank) if other != axis)]
    operator.require(axis != 0, "of axis 0")
    data = writer.transpose(operands[0], order)
    epsilon = float(attributes.epsilon)
    result = writer.add("BatchNormalization", [data, *operands[1:]], epsilon=epsilon)
    back = [order.index(position) for position in range(rank)]
    return [writer.transpose(result, back), *operands[3:5]]


def _trailing_axis(operator: Operator) -> int:
    """Return the first of the normalised axes. Raises Untranslatable unless they are the last ones."""
    rank = len(operator.inputs[0].shape)
    axes = sorted(axis % rank for axis in operator.integers("axes"))
    are_last = axes == list(range(rank - len(axes), rank)) and bool(axes)
    operator.require(are_last, f"of axes {axes}, which are not the last ones")
    return axes[0]


def _layer_norm(writer: GraphWriter, operator: Operator) -> list[str]:
    _require_affine(operator)
    axis, epsilon = _trailing_axis(operator), float(operator.attributes.epsilon)
    operands = operator.operands(writer)
    return [writer.add("LayerNormalization", operands, axis=axis, epsilon=epsilon)]


def _rms_norm(writer: GraphWriter, operator: Operator) -> list[str]:
    value, weight = operator.operands(writer)
    axes = writer.integers(operator.integers("axes"))
    epsilon = np.asarray(operator.attributes.epsilon, operator.numpy_dtype)
    mean = writer.add("ReduceMean", [writer.add("Mul", [value, value]), axes], keepdims=1)
    root = writer.add("Sqrt", [writer.add("Add", [mean, writer.constant(epsilon)])])
    return [writer.add("Mul", [writer.add("Div", [value, root]), weight])]


def _require_channels_first(operator: Operator) -> None:
    rank = len(operator.inputs[0].shape)
    axes = sorted(axis % rank for axis in operator.integers("axes"))
    is_standard = int(operator.attributes.channel_axis) % rank == 1 and axes == list(range(2, rank))
    operator.require(is_standard, f"of axes {axes} beside channels on another axis than 1")
    _require_affine(operator)


def _instance_norm(writer: GraphWriter, operator: Operator) -> list[str]:
    _require_channels_first(operator)
    epsilon = float(operator.attributes.epsilon)
    return [writer.add("InstanceNormalization", operator.operands(writer), epsilon=epsilon)]


def _group_norm(writer: GraphWriter, operator: Operator) -> list[str]:
    _require_channels_first(operator)
    groups, shape = int(operator.attributes.num_groups), operator.inputs[0].shape
    value, gamma, beta = operator.operands(writer)
    units = [writer.constant(np.full(groups, unit, operator.numpy_dtype)) for unit in (1.0, 0.0)]
    grouped = writer.reshape(value, (shape[0], groups, -1))
    epsilon = float(operator.attributes.epsilon)
    normal = writer.add("InstanceNormalization", [grouped, *units], epsilon=epsilon)
    normal = writer.reshape(normal, shape)
    channels = (shape[1], *(1 for _ in shape[2:]))
    scaled = writer.add("Mul", [normal, writer.reshape(gamma, channels)])
    return [writer.add("Add", [scaled, writer.reshape(beta, channels)])]


def _on_axis(onnx_operator: str) -> Translation:
    def write(writer: GraphWriter, operator: Operator) -> list[str]:
        axis = int(operator.attributes.axis)
        return [writer.add(onnx_operator, operator.operands(writer), axis=axis)]

    return write


def _plain(onnx_operator: str) -> Translation:
    def write(writer: GraphWriter, operator: Operator) -> list[str]:
        return [writer.add(onnx_operator, operator.operands(writer))]

    return write


def _gelu(approximation: str) -> Translation:
    def write(writer: GraphWriter, operator: Operator) -> list[str]:
        return [writer.add("Gelu", operator.operands(writer), approximate=approximation)]

    return write


def _silu(writer: GraphWriter, operator: Operator) -> list[str]:
    (value,) = operator.operands(writer)
    return [writer.add("Mul", [value, writer.add("Sigmoid", [value])])]


def _relu6(writer: GraphWriter, operator: Operator) -> list[str]:
    bounds = [np.asarray(bound, operator.numpy_dtype) for bound in (0, 6)]
    return [writer.add("Clip", [operator.operand(writer, 0), *map(writer.constant, bounds)])]


def _leakyrelu(writer: GraphWriter, operator: Operator) -> list[str]:
    alpha = float(operator.attributes.alpha)
    return [writer.add("LeakyRelu", operator.operands(writer), alpha=alpha)]


def _prelu(writer: GraphWriter, operator: Operator) -> list[str]:
    value, slope = operator.operands(writer)
    rank = len(operator.inputs[0].shape)
    behind = rank - 1 - int(operator.attributes.axis) % rank
    slope = writer.reshape(slope, (prod(operator.inputs[1].shape), *(1,) * behind))
    return [writer.add("PRelu", [value, slope])]


def _softplus(writer: GraphWriter, operator: Operator) -> list[str]:
    beta = float(operator.attributes.beta)
    operator.require(beta == 1.0, f"of beta {beta}")
    return [writer.add("Softplus", operator.operands(writer))]


def _dropout(writer: GraphWriter, operator: Operator) -> list[str]:
    """Dropout changes nothing in inference, and its mask is full."""
    (value,) = operator.operands(writer)
    mask = writer.constant(np.asarray(1, operator.numpy_dtype))
    return [value, writer.expand(mask, operator.inputs[0].shape)]


def _pad(writer: GraphWriter, operator: Operator) -> list[str]:
    attributes, widths = operator.attributes, operator.integers("pad_width")
    mode = str(attributes.pad_mode)
    operator.require(mode in _PAD_MODES, f"of mode {mode}")
    fill = writer.constant(np.asarray(attributes.pad_value, operator.numpy_dtype))
    pads = writer.integers([*widths[::2], *widths[1::2]])
    operands = [operator.operand(writer, 0), pads, fill]
    return [writer.add("Pad", operands, mode=_PAD_MODES[mode])]


def _reshape(writer: GraphWriter, operator: Operator) -> list[str]:
    return [writer.reshape(operator.operand(writer, 0), operator.result.shape)]


def _attention(writer: GraphWriter, operator: Operator) -> list[str]:
    """Scaled products of queries and keys: batch, sequence, head, size."""
    attributes = operator.attributes
    operator.require(attributes.causal_mask is None, f"of causal_mask {attributes.causal_mask}")
    operator.require(attributes.window_size is None, f"of window_size {attributes.window_size}")
    query, key, value, *bias = operator.operands(writer)
    size = operator.inputs[0].shape[-1]
    scale = size**-0.5 if attributes.scale is None else float(attributes.scale)
    heads: Sequence[str] = [writer.transpose(item, (0, 2, 1, 3)) for item in (query, value)]
    scores = writer.add("MatMul", [heads[0], writer.transpose(key, (0, 2, 3, 1))])
    factor = writer.constant(np.asarray(scale, operator.numpy_dtype))
    scores = writer.add("Mul", [scores, factor])
    for item in bias:
        scores = writer.add("Add", [scores, item])
    weights = writer.add("Softmax", [scores], axis=-1)
    return [writer.transpose(writer.add("MatMul", [weights, heads[1]]), (0, 2, 1, 3))]


def _resize2d(writer: GraphWriter, operator: Operator) -> list[str]:
    attributes = operator.attributes
    method, layout = str(attributes.method), str(attributes.layout)
    operator.require(method in _RESIZE_METHODS, f"of method {method}")
    mode = str(attributes.coordinate_transformation_mode)
    is_standard = mode in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
    operator.require(is_standard, f"of coordinate_transformation_mode {mode}")
    default = "round" if mode == "align_corners" else "floor"
    rounding = str(attributes.rounding_method) or default
    operator.require(rounding in _NEAREST, f"of rounding_method {rounding}")
    operator.require_input_dtype("out_dtype")
    data = writer.transpose(operator.operand(writer, 0), _order(layout, "NCHW", operator))
    sizes = [operator.result.shape[axis] for axis in _order(layout, "NCHW", operator)]
    result = writer.add(
        "Resize",
        [data, "", "", writer.integers(sizes)],
        mode=_RESIZE_METHODS[method],
        coordinate_transformation_mode=mode,
        nearest_mode=_NEAREST[rounding],
        cubic_coeff_a=float(attributes.cubic_alpha),
        exclude_outside=int(attributes.cubic_exclude),
    )
    return [writer.transpose(result, _order("NCHW", layout, operator))]


NN_OPERATORS: Mapping[str, Translation] = {
    "nn.conv1d": _convolution("Conv", "OI"), "nn.conv2d": _convolution("Conv", "OI"),
    "nn.conv3d": _convolution("Conv", "OI"),
    "nn.conv1d_transpose": _convolution("ConvTranspose", "IO"),
    "nn.conv2d_transpose": _convolution("ConvTranspose", "IO"),
    "nn.conv3d_transpose": _convolution("ConvTranspose", "IO"),
    **{f"nn.max_pool{rank}d": _pool("MaxPool") for rank in (1, 2, 3)},
    **{f"nn.avg_pool{rank}d": _pool("AveragePool") for rank in (1, 2, 3)},
    **{f"nn.adaptive_avg_pool{rank}d": _adaptive_avg_pool for rank in (1, 2, 3)},
    "nn.batch_norm": _batch_norm, "nn.layer_norm": _layer_norm, "nn.rms_norm": _rms_norm,
    "nn.instance_norm": _instance_norm, "nn.group_norm": _group_norm,
    "nn.softmax": _on_axis("Softmax"), "nn.log_softmax": _on_axis("LogSoftmax"),
    "nn.relu": _plain("Relu"), "nn.selu": _plain("Selu"), "nn.relu6": _relu6, "nn.silu": _silu,
    "nn.gelu": _gelu("none"), "nn.gelu_tanh": _gelu("tanh"), "nn.leakyrelu": _leakyrelu,
    "nn.prelu": _prelu, "nn.softplus": _softplus, "nn.dropout": _dropout, "nn.pad": _pad,
    "nn.batch_flatten": _reshape, "nn.attention": _attention,
    "nn.attention_bias": _attention, "image.resize2d": _resize2d,
    "quantize": _on_axis("QuantizeLinear"), "dequantize": _on_axis("DequantizeLinear"),
}  # fmt: skip
"""Translations by the operator's name without `relax.`."""
