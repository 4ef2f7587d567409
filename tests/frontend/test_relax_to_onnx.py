"""Relax functions become ONNX models that compute what TVM computes, or an error names the operator."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op
from tvm.script import ir as I
from tvm.script import relax as R

from collage.errors import ModelError
from collage.frontend import relax_to_onnx
from collage.frontend.relax_module import DevicePin, flat_functions
from collage.frontend.relax_proof import is_close, prove_translation
from collage.frontend.relax_to_onnx import translate, write_model
from tests.support.relax_modules import module_of, variable

X, Y = variable("x", 2, 8, 8, 8), variable("y", 2, 8, 8, 8)
GAMMA, BETA, MEAN = (variable(name, 8) for name in ("gamma", "beta", "mean"))
KERNEL, LAST = variable("kernel", 8, 8, 3, 3), variable("kernel", 3, 3, 8, 8)
GROUPED, UP = variable("kernel", 8, 4, 3, 3), variable("kernel", 8, 4, 3, 3)
SIGNAL, TAPS = variable("signal", 2, 8, 9), variable("taps", 4, 8, 3)
INDEX, WIDE = variable("index", 2, 3, dtype="int64"), variable("index", 2, 8, 8, 8, dtype="int64")
NARROW, OTHER = variable("index", 2, 3, dtype="int32"), variable("other", 2, 3, dtype="int64")
BYTES = variable("x", 2, 8, 8, 8, dtype="int8")
FACTOR, ZEROS = relax.const(np.full(8, 0.1, "float32")), relax.const(np.zeros(8, "int8"))


def scalar(value):
    return tvm.tirx.FloatImm("float32", value)


def batch_norm(axis):
    call = op.nn.batch_norm(X, GAMMA, BETA, MEAN, op.abs(GAMMA), axis, training=False)
    return relax.TupleGetItem(call, 0)


def resized(method, mode, rounding=""):
    return op.image.resize2d(
        X, (13, 12), method=method, coordinate_transformation_mode=mode, rounding_method=rounding
    )


UNARY = [
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "erf", "exp",
    "floor", "log", "negative", "round", "sigmoid", "sign", "sin", "sinh", "sqrt", "tan", "tanh",
    "isnan", "isinf", "isfinite", "square", "rsqrt", "trunc", "nn.relu", "nn.selu", "nn.gelu",
    "nn.gelu_tanh", "nn.silu", "nn.relu6", "nn.softplus", "nn.softmax", "nn.log_softmax",
    "nn.leakyrelu", "nn.batch_flatten", "flatten", "permute_dims", "sum", "argmax", "ones_like",
    "tril", "triu", "sort", "argsort",
]  # fmt: skip
BINARY = [
    "add", "subtract", "multiply", "divide", "power", "maximum", "minimum", "equal", "greater",
    "less", "greater_equal", "less_equal", "not_equal", "floor_divide", "mod", "floor_mod",
    "matmul",
]  # fmt: skip


def operator(name):
    return getattr(op.nn, name[3:]) if name.startswith("nn.") else getattr(op, name)


TRANSLATED = {
    **{name: ([X], operator(name)(X)) for name in UNARY},
    **{name: ([X, Y], operator(name)(X, Y)) for name in BINARY},
    **{
        f"{name} of integers": ([INDEX, OTHER], operator(name)(INDEX, OTHER))
        for name in ("add", "multiply", "maximum", "equal", "bitwise_and", "bitwise_xor")
    },
    **{
        f"{name} of axes": ([X], operator(name)(X, [1, 2]))
        for name in ("sum", "mean", "variance", "std", "prod", "max", "min")
    },
    "conv2d": ([X, KERNEL], op.nn.conv2d(X, KERNEL, padding=(1, 0, 2, 1), strides=(2, 1))),
    "conv2d grouped": ([X, GROUPED], op.nn.conv2d(X, GROUPED, groups=2, dilation=(2, 1))),
    "conv2d NHWC": (
        [X, LAST],
        op.nn.conv2d(X, LAST, data_layout="NHWC", kernel_layout="HWIO", padding=1),
    ),
    "conv2d_transpose": (
        [X, UP],
        op.nn.conv2d_transpose(X, UP, strides=2, padding=1, output_padding=1),
    ),
    "conv1d": ([SIGNAL, TAPS], op.nn.conv1d(SIGNAL, TAPS, padding=1)),
    "max_pool2d": ([X], op.nn.max_pool2d(X, (3, 3), (2, 2), (1, 1))),
    "max_pool2d ceil": ([X], op.nn.max_pool2d(X, (3, 3), (2, 2), ceil_mode=True)),
    "avg_pool2d": ([X], op.nn.avg_pool2d(X, (3, 3), (2, 2), (1, 1))),
    "avg_pool2d padded": (
        [X],
        op.nn.avg_pool2d(X, (3, 3), (2, 2), (1, 1), count_include_pad=True),
    ),
    "adaptive_avg_pool2d": ([X], op.nn.adaptive_avg_pool2d(X, (1, 1))),
    "adaptive_avg_pool2d NHWC": ([X], op.nn.adaptive_avg_pool2d(X, (4, 2), layout="NHWC")),
    "batch_norm": ([X, GAMMA, BETA, MEAN], batch_norm(1)),
    "batch_norm last": ([X, GAMMA, BETA, MEAN], batch_norm(3)),
    "layer_norm": ([X, GAMMA, BETA], op.nn.layer_norm(X, GAMMA, BETA, [-1])),
    "group_norm": ([X, GAMMA, BETA], op.nn.group_norm(X, GAMMA, BETA, 4, 1, [2, 3])),
    "instance_norm": ([X, GAMMA, BETA], op.nn.instance_norm(X, GAMMA, BETA, 1, [2, 3])),
    "rms_norm": ([X, GAMMA], op.nn.rms_norm(X, GAMMA, [-1])),
    "softmax of axis": ([X], op.nn.softmax(X, 1)),
    "prelu": ([X, GAMMA], op.nn.prelu(X, GAMMA, 1)),
    "dropout": ([X], relax.TupleGetItem(op.nn.dropout(X), 0)),
    "attention": ([X, Y], op.nn.attention(X, Y, Y)),
    "attention_bias": ([X, Y], op.nn.attention(X, Y, Y, bias=X)),
    **{
        f"pad {mode}": ([X], op.nn.pad(X, [0, 0, 0, 0, 1, 2, 3, 0], mode, 1.5))
        for mode in ("constant", "reflect", "replicate", "circular")
    },
    "clip": ([X], op.clip(X, -0.5, 1)),
    "einsum": ([X, Y], op.einsum([X, Y], "abcd,abed->abce")),
    "max kept": ([X], op.max(X, [1], True)),
    "argmin kept": ([X], op.argmin(X, -1, True)),
    "cumsum": ([X], op.cumsum(X, 1, exclusive=True)),
    "cumsum of all": ([X], op.cumsum(X)),
    "astype": ([X], op.astype(X, "int32")),
    "reshape": ([X], op.reshape(X, (16, -1))),
    "concat": ([X, Y], op.concat([X, Y], -1)),
    "stack": ([X, Y], op.stack([X, Y], 1)),
    "split": ([X], op.split(X, [2, 5], 1)),
    "squeeze": ([X], op.squeeze(op.sum(X, [1], True), [1])),
    "expand_dims": ([X], op.expand_dims(X, [0, 1])),
    "broadcast_to": ([GAMMA], op.broadcast_to(GAMMA, (3, 8))),
    "strided_slice": ([X], op.strided_slice(X, [1, 2], [0, -1], [4, 0], [1, -2])),
    "take": ([X, INDEX], op.take(X, INDEX, 1)),
    "take clip": ([X, NARROW], op.take(X, NARROW, 1, "clip")),
    "take wrap": ([X, NARROW], op.take(X, NARROW, 1, "wrap")),
    "where": ([X, Y], op.where(op.logical_not(op.greater(X, Y)), X, Y)),
    "full": ([X], op.add(X, op.full((8,), relax.const(2.0), "float32"))),
    "full_like": ([X], op.add(X, op.full_like(X, relax.const(3.0)))),
    "arange": ([X], op.add(X, op.arange(0, 16, 2, "float32"))),
    "topk": ([X], op.topk(X, 2, 1)),
    "topk of indices": ([X], op.topk(X, 2, 1, "indices", False)),
    "gather_elements": ([X, WIDE], op.gather_elements(X, WIDE, 1)),
    "gather_nd": ([X, INDEX], op.gather_nd(X, INDEX)),
    "scatter_elements": ([X, WIDE, Y], op.scatter_elements(X, WIDE, Y, 1, "add")),
    "one_hot": ([INDEX], op.one_hot(INDEX, scalar(1.0), scalar(0.0), 4)),
    "repeat": ([X], op.repeat(X, 2, 1)),
    "tile": ([GAMMA], op.tile(GAMMA, (2, 3))),
    "flip": ([X], op.flip(X, 1)),
    "resize2d linear": ([X], resized("linear", "half_pixel")),
    "resize2d cubic": ([X], resized("cubic", "half_pixel")),
    "resize2d nearest": ([X], resized("nearest_neighbor", "asymmetric", "floor")),
    "resize2d aligned": ([X], resized("nearest_neighbor", "align_corners")),
    "quantize": ([X], op.quantize(X, FACTOR, ZEROS, 1)),
    "dequantize": ([BYTES], op.dequantize(BYTES, FACTOR, ZEROS, 1)),
    "scalar": ([X], op.multiply(X, scalar(2.0))),
    "outer": ([GAMMA, BETA], op.outer(GAMMA, BETA)),
    "nothing": ([X, Y], relax.Tuple([X, Y, X])),
}


def translated(module):
    (flat,) = flat_functions(module)
    return translate(flat)


def prove(module, folder):
    function, path = translated(module), folder / "model.onnx"
    write_model(function, path)
    prove_translation(function, path)


@pytest.mark.full
@pytest.mark.parametrize("case", sorted(TRANSLATED))
def test_an_operator_computes_what_tvm_computes(case, tmp_path):
    prove(module_of(*TRANSLATED[case]), tmp_path)


def test_a_wrong_translation_is_an_error_with_the_operator(tmp_path, monkeypatch):
    wrong = {**relax_to_onnx._TRANSLATIONS, "tanh": relax_to_onnx._TRANSLATIONS["sin"]}
    monkeypatch.setattr(relax_to_onnx, "_TRANSLATIONS", wrong)
    module = module_of([GAMMA, BETA], op.add(op.tanh(op.negative(GAMMA)), BETA))
    with pytest.raises(ModelError, match=r"main has the operator relax\.tanh, whose ONNX form"):
        prove(module, tmp_path)


def test_results_are_close_within_rounding_only():
    values = np.array([1.0, np.inf, np.nan, -2.0], np.float32)
    assert is_close(values, values + np.float32(1e-5))
    assert not is_close(values, values + np.float32(1e-1))
    assert not is_close(values, np.nan_to_num(values))
    assert not is_close(np.array([1]), np.array([2]))
    assert not is_close(values, values[:3])


REFUSED = {
    "unique": (op.unique(GAMMA), "result that is no tensor of known shape"),
    "cumprod": (op.cumprod(X, 1), r"relax\.cumprod, which has no translation"),
    "training": (
        relax.TupleGetItem(op.nn.batch_norm(X, GAMMA, BETA, MEAN, GAMMA, 1), 0),
        "training=True",
    ),
    "integers": (op.floor_divide(INDEX, INDEX), r"relax\.floor_divide on integers"),
    "windows": (op.nn.adaptive_avg_pool2d(X, (3, 3)), "unequal windows"),
    "causal": (op.nn.attention(X, X, X, causal_mask="TopLeft"), "causal_mask TopLeft"),
}


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_what_onnx_cannot_say_names_operator_and_function(case):
    result, message = REFUSED[case]
    with pytest.raises(ModelError, match=f"Relax function main has .*{message}"):
        translated(module_of([X, GAMMA, BETA, MEAN, INDEX], result))


@I.ir_module
class Nested:
    I.module_global_infos({"vdevice": [I.vdevice("llvm")]})

    @R.function(private=True)
    def inner(a: R.Tensor((2, 3), "float32"), b: R.Tensor((2, 3), "float32")):
        return R.subtract(a, b), R.nn.relu(a)

    @R.function
    def second(x: R.Tensor((2, 3), "float32", "llvm:0")):
        with R.dataflow():
            pair = Nested.inner(R.negative(x), x)
            result = R.multiply(pair[0], pair[1])
            R.output(result)
        return result

    @R.function
    def first(x: R.Tensor((2, 3), "float32", "llvm:0")):
        return Nested.second(R.exp(x))


def test_public_functions_are_flat_with_calls_inlined():
    first, second = flat_functions(Nested)
    assert (first.name, second.name) == ("first", "second")
    assert first.pins == second.pins == {DevicePin("cpu"): "x"}
    operators = [node.op_type for node in translate(first).model.graph.node]
    assert operators == ["Exp", "Neg", "Sub", "Relu", "Mul", "Identity"]


@I.ir_module(check_well_formed=False)
class Endless:
    @R.function
    def main(x: R.Tensor((2,), "float32")) -> R.Tensor((2,), "float32"):
        return Endless.main(x)


@I.ir_module
class Branch:
    @R.function
    def main(x: R.Tensor((2,), "float32"), which: R.Tensor((), "bool")):
        if which:  # noqa: SIM108 - TVM's script has no conditional expression
            y = R.exp(x)
        else:
            y = R.negative(x)
        return y


@I.ir_module
class Symbolic:
    @R.function
    def main(x: R.Tensor(("n", 2), "float32")):
        return R.exp(x)


@I.ir_module
class Private:
    @R.function(private=True)
    def main(x: R.Tensor((2,), "float32")):
        return R.exp(x)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Endless, "more than 64 levels, or itself"),
        (Branch, "control flow"),
        (Symbolic, r"parameter x of unknown shape \(n\); .*BindSymbolicVars"),
        (Private, "no public function"),
    ],
)
def test_functions_without_a_flat_form_are_refused(module, message):
    with pytest.raises(ModelError, match=message):
        flat_functions(module)
