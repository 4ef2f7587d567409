"""Kernels of every kind: right numbers, saved and loaded, clear errors."""

import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm_ffi
from onnx import helper, numpy_helper

from collage.runtime.blob import Header, pack
from collage.runtime.plugin import load_plugin
from tests.runtime import executables

KINDS = ("onnxruntime", "openvino")
RNG = np.random.default_rng(0)


def _reference(model: bytes, feeds):
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def _convolution() -> bytes:
    weight = RNG.standard_normal((4, 3, 3, 3)).astype("float32")
    bias = RNG.standard_normal(4).astype("float32")
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["y"]),
        helper.make_node("GlobalAveragePool", ["y"], ["m"]),
    ]
    weights = [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(bias, "b")]
    return executables.model(
        nodes, {"x": (1, 3, 8, 8)}, {"y": (1, 4, 8, 8), "m": (1, 4, 1, 1)}, weights
    )


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_saved_kernel_with_two_outputs_computes_the_same(kind, threads, tmp_path):
    model = _convolution()
    blob = executables.onnx_blob(model, threads=threads)
    module = executables.chain(
        [(kind, blob)],
        [((1, 3, 8, 8), "float32")],
        [((1, 4, 8, 8), "float32"), ((1, 4, 1, 1), "float32")],
    )
    path = executables.export(module, tmp_path / "model.so")
    x = RNG.standard_normal((1, 3, 8, 8)).astype("float32")
    outputs = executables.run_saved(path, x)
    for value, expected in zip(outputs, _reference(model, {"x": x}), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5)


def test_kinds_mix_in_one_executable(tmp_path):
    blob = executables.onnx_blob(executables.relu_model())
    types = [((1, 8), "float32")]
    module = executables.chain([(kind, blob) for kind in KINDS * 2], types, types)
    path = executables.export(module, tmp_path / "model.so")
    x = RNG.standard_normal((1, 8)).astype("float32")
    np.testing.assert_array_equal(executables.run_saved(path, x)[0], np.maximum(x, 0))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["int64", "int32", "int8", "uint8", "float16", "float64", "bool"])
def test_dtypes_pass_through(kind, dtype):
    x = RNG.integers(0, 2, (2, 3)).astype(dtype)
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    info = [helper.make_tensor_value_info(name, element, (2, 3)) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", info[:1], info[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    y = np.zeros_like(x)
    blob = executables.onnx_blob(model.SerializeToString())
    executables.call_kernel(kind, blob, [x], [y])
    np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize("kind", KINDS)
def test_scalars_pass_through(kind):
    model = executables.model([helper.make_node("Relu", ["x"], ["y"])], {"x": ()}, {"y": ()})
    y = np.zeros((), "float32")
    executables.call_kernel(kind, executables.onnx_blob(model), [np.float32(3)], [y])
    assert y == 3


@pytest.mark.parametrize("level", ["all", "extended", "basic", "disable"])
def test_onnxruntime_optimisation_levels(level):
    blob = executables.onnx_blob(executables.relu_model(), graph_optimization_level=level)
    y = np.zeros((1, 8), "float32")
    executables.call_kernel("onnxruntime", blob, [np.full((1, 8), -1, "float32")], [y])
    assert not y.any()


def _allocating(nodes, dtype="float32", outputs=("y",)):
    load_plugin()
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    x = helper.make_tensor_value_info("x", element, (2, 3))
    values = [onnx.ValueInfoProto(name=name) for name in outputs]
    graph = helper.make_graph(nodes, "g", [x], values)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    blob = executables.onnx_blob(model.SerializeToString(), allocates=1)
    create = tvm_ffi.get_global_func("collage.create_module")
    return create("onnxruntime", "kernel", blob).get_function("kernel")


@pytest.mark.parametrize("dtype", ["int64", "int32", "int8", "uint8", "float16", "float64", "bool"])
def test_an_allocating_kernel_returns_tensors_of_every_dtype(dtype):
    x = RNG.integers(0, 2, (2, 3)).astype(dtype)
    output = _allocating([helper.make_node("Identity", ["x"], ["y"])], dtype)(
        tvm_ffi.from_dlpack(x)
    )
    np.testing.assert_array_equal(np.from_dlpack(output), x)
    assert np.from_dlpack(output).dtype == x.dtype


def test_results_of_an_allocating_kernel_outlive_it():
    nodes = [helper.make_node("NonZero", ["x"], ["n"]), helper.make_node("Relu", ["x"], ["y"])]
    kernel = _allocating(nodes, outputs=("n", "y"))
    outputs = []
    for count in (4, 0, 6, 1):
        x = (np.arange(6, dtype="float32") < count).reshape(2, 3).astype("float32")
        outputs.append((x, kernel(tvm_ffi.from_dlpack(x))))
    del kernel
    for x, (places, y) in outputs:
        np.testing.assert_array_equal(np.from_dlpack(places), np.stack(np.nonzero(x)))
        np.testing.assert_array_equal(np.from_dlpack(y), x)


def test_an_allocating_kernel_says_what_it_cannot_take_or_return():
    x = tvm_ffi.from_dlpack(np.ones((2, 3), "float32"))
    with pytest.raises(ValueError, match="expected 1 tensors, got 2"):
        _allocating([helper.make_node("Relu", ["x"], ["y"])])(x, x)
    with pytest.raises(TypeError, match="element type 8"):
        _allocating([helper.make_node("Cast", ["x"], ["y"], to=onnx.TensorProto.STRING)])(x)
    with pytest.raises(TypeError, match="no tensor"):
        _allocating([helper.make_node("SplitToSequence", ["x"], ["y"])])(x)


VECTOR = {"dtype": "float32", "shape": [4]}
SIDES: Header = {"inputs": 1, "arguments": [VECTOR, VECTOR]}
"""What a shared library with one input and one output says of them."""
NOT_ONNX = pack({}, [np.zeros(8, "uint8")])
WRONG = [
    ("onnxruntime", b"nonsense", "not a kernel blob"),
    ("onnxruntime", pack({}, [])[:20], "truncated"),
    ("onnxruntime", pack({}, []), "no ONNX model"),
    ("onnxruntime", NOT_ONNX, "onnxruntime"),
    ("openvino", NOT_ONNX, "openvino"),
    ("shared_library", pack(SIDES, [np.zeros(8, "uint8")]), "cannot be loaded"),
    ("shared_library", pack({}, [np.zeros(8, "uint8")]), "'arguments'"),
    ("nonesuch", NOT_ONNX, "no kernel of kind 'nonesuch'"),
]


@pytest.mark.parametrize(("kind", "blob", "message"), WRONG)
def test_wrong_blobs_are_errors_that_say_why(kind, blob, message):
    with pytest.raises((RuntimeError, ValueError), match=message):
        executables.call_kernel(kind, blob, [], [])


@pytest.mark.parametrize("kind", KINDS)
def test_a_kernel_is_usable_after_a_wrong_shape(kind):
    import tvm

    load_plugin()
    blob = executables.onnx_blob(executables.relu_model())
    module = tvm_ffi.get_global_func("collage.create_module")(kind, "kernel", blob)
    kernel = module.get_function("kernel")
    wrong, right = (tvm.runtime.tensor(np.ones((1, n), "float32")) for n in (9, 8))
    out = tvm.runtime.tensor(np.zeros((1, 8), "float32"))
    for _ in range(2):
        with pytest.raises(RuntimeError, match=kind):
            kernel(wrong, out)
    kernel(right, out)
    assert out.numpy().all()
    with pytest.raises(ValueError, match="expected 2 tensors, got 1"):
        kernel(right)


SOURCE = """
extern int helper_factor(void) __attribute__((weak));
int collage_kernel(const void* const* in, const void* const* constants, void* const* out) {
  const float* x = in[0]; const float* w = constants[0]; float* y = out[0];
  for (int i = 0; i < 4; ++i) y[i] = x[i] * w[i] * (helper_factor ? helper_factor() : 1);
  return w[0] < 0;
}
"""


def _compile(folder, name, source):
    code, library = folder / f"{name}.c", folder / f"{name}.so"
    code.write_text(source)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, code], check=True)
    return library


def test_shared_library_kernels_with_constants_and_libraries(tmp_path):
    load_plugin()
    image = np.frombuffer(_compile(tmp_path, "kernel", SOURCE).read_bytes(), np.uint8)
    factor = _compile(tmp_path, "factor", "int helper_factor(void) { return 3; }")
    x, y = np.arange(4, dtype="float32"), np.zeros(4, "float32")
    for weight, factor_name, scale in ((2, None, 1), (5, None, 1), (2, "factor", 3)):
        header = {**SIDES, "libraries": [factor_name] if factor_name else []}
        tvm_ffi.get_global_func("collage.set_library")("factor", str(factor))
        blob = pack(header, [image, np.full(4, weight, "float32")])
        executables.call_kernel("shared_library", blob, [x], [y])
        np.testing.assert_array_equal(y, x * weight * scale)
    failing = pack(SIDES, [image, np.full(4, -1, "float32")])
    with pytest.raises(RuntimeError, match="returned 1"):
        executables.call_kernel("shared_library", failing, [x], [y])
    missing = pack({**SIDES, "libraries": ["absent"]}, [image])
    with pytest.raises(RuntimeError, match="COLLAGE_LIB_ABSENT"):
        executables.call_kernel("shared_library", missing, [x], [y])


MISSING = """
import tvm_ffi
from collage.runtime import plugin
from tests.runtime import executables
import numpy as np
plugin.load_plugin()
tvm_ffi.get_global_func("collage.set_library")("{kind}", "")
try:
    executables.call_kernel("{kind}", executables.onnx_blob(executables.relu_model()), [], [])
except RuntimeError as error:
    print(error)
"""


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_library_names_what_to_install(kind):
    done = subprocess.run(
        [sys.executable, "-c", MISSING.format(kind=kind)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"pip install '{kind}" in done.stdout
    assert f"COLLAGE_LIB_{kind.upper()}" in done.stdout
