"""Tests in a process with the simulated GPU: `test_simulated.py` starts pytest on this file."""

import ctypes
import os
import subprocess
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import tvm_ffi
from onnx import helper, numpy_helper

from benchmarks.gpu_models import CompileBudget, imported, in_dtype, row_of
from collage.assemble import FunctionPlan, PlannedKernel, assemble
from collage.backends.base import BuildContext, CudaKernel
from collage.backends.nvidia.tensorrt.engine import ENGINES
from collage.cost import Environment, LocalCostTable
from collage.errors import BackendError, InputError
from collage.frontend.inputs import random_inputs, reference_values, save_reference
from collage.frontend.region import region_values
from collage.measure.call_overhead import LENGTHS, gpu_dispatch_overhead
from collage.measure.conditions import MeasuringConditions
from collage.measure.cuda_device import CudaDevice
from collage.measure.local import LocalMeasurer
from collage.measure.measurement_request import MeasurementRequest
from collage.options import Options
from collage.runtime.cuda import cuda
from collage.runtime.target import Target
from collage.runtime.tensor_exchange import _device_tensor
from tests.backends.nvidia.faulty import CrashingBackend
from tests.backends.nvidia.gpu_log import LOG, _log, logged  # noqa: F401
from tests.backends.nvidia.plans import BACKENDS, bundle_of, check, plan_of, run_plan, windows
from tests.backends.regions import _function, _weight, convolutions

TOOLKIT = Path(os.environ["CUDA_HOME"])


@pytest.mark.parametrize("model", [convolutions, windows])
@pytest.mark.parametrize(
    "name", ["cudnn", "cublas", "tvm-cuda", "onnxruntime-host", "onnxruntime-cuda", "tensorrt"]
)
def test_a_plan_computes_the_models_numbers(tmp_path, model, name):
    check(plan_of(model(tmp_path), BACKENDS[name]), tmp_path)
    assert not logged("spoiled")


def test_other_variants_compute_them_too(tmp_path):
    function = convolutions(tmp_path)
    check(plan_of(function, BACKENDS["tvm-cuda"], "fallback"), tmp_path)
    check(plan_of(function, BACKENDS["cudnn"], "heuristic-2"), tmp_path)
    with pytest.raises(RuntimeError, match=r"2 usable engines, so there is none of rank 2"):
        check(plan_of(function, BACKENDS["cudnn"], "heuristic-3"), tmp_path)


def test_kernels_that_allow_it_are_captured_and_replayed(tmp_path):
    """The first call captures, the second and third launch the graph: on other inputs, so not its results."""
    check(plan_of(convolutions(tmp_path), BACKENDS["tvm-cuda"]), tmp_path)
    assert len(logged("begin capture")) == len(logged("end capture")) == 1
    assert len(logged("launch graph")) >= 2
    assert logged("captured collage_main")


def test_links_are_measured_in_graphs_and_launched_one_by_one():
    boundary = gpu_dispatch_overhead(CudaDevice().synchronize)
    assert 0 <= boundary.call_s < 1e-2
    assert 0 <= boundary.launch_s < 1e-2
    graphs = set(logged("launch graph"))
    assert len(graphs) == len(LENGTHS)  # the whole chain but for its ends
    assert logged("begin capture")
    assert not logged("spoiled")


def test_a_plan_with_a_region_on_the_host_is_not_captured(tmp_path):
    plan = plan_of(convolutions(tmp_path), BACKENDS["cudnn"])
    assert {kernel.backend for kernel in plan.kernels} == {"cudnn", "onnxruntime-host"}
    check(plan, tmp_path)
    assert not logged("begin capture")
    assert logged("run cudnnConvolution")


PROVIDERS = {"onnxruntime-cuda": "session cuda", "tensorrt": "session tensorrt"}


@pytest.mark.parametrize("name", PROVIDERS)
def test_sessions_neither_copy_nor_wait_and_are_not_captured(tmp_path, name):
    plan = plan_of(convolutions(tmp_path), BACKENDS[name])
    assert {kernel.backend for kernel in plan.kernels} == {name}
    check(plan, tmp_path)
    assert len(logged(f"run {PROVIDERS[name]}")) == 3
    assert not [*logged("hidden copy"), *logged("synchronised"), *logged("begin capture")]


def test_the_options_of_a_session_keep_the_precision(tmp_path):
    check(plan_of(convolutions(tmp_path), BACKENDS["onnxruntime-cuda"], "channels-last"), tmp_path)
    (options,) = logged("session cuda")
    assert options.split()[2:] == [
        "arena_extend_strategy=kSameAsRequested", "cudnn_conv_algo_search=EXHAUSTIVE",
        "device_id=0", "prefer_nhwc=1", "use_tf32=0",
    ]  # fmt: skip
    for dtype, allowed in (("float32", 0), ("float16", 1)):
        LOG.write_text("")
        file = in_dtype(tmp_path / "model.onnx", dtype, tmp_path)
        function = imported(file, tmp_path)
        BACKENDS["tensorrt"].compile(function, function.graph.everything, BuildContext(1))
        (options,) = logged("session tensorrt")
        assert options.count("trt_fp16_enable=1") == allowed
        assert "trt_bf16_enable" not in options


def test_an_engine_is_built_once_and_travels_in_the_executable(tmp_path):
    """The second compile finds it in the store; the assembled executable does not need the store."""
    function, backend = windows(tmp_path), BACKENDS["tensorrt"]
    regions = len(plan_of(function, backend).kernels)
    assert len(logged("build engine")) == regions
    plan = plan_of(function, backend)
    assert len(logged("build engine")) == regions
    for file in (Options().store_dir / ENGINES).glob("*.onnx"):
        file.unlink()
    check(plan, tmp_path)
    assert len(logged("build engine")) == len(logged("load engine")) == regions


def test_another_library_or_gpu_has_engines_of_its_own(tmp_path, monkeypatch):
    function, backend = convolutions(tmp_path), BACKENDS["tensorrt"]
    backend.compile(function, function.graph.everything, BuildContext(1))
    built = len(logged("build engine"))
    monkeypatch.setattr("collage.backends.nvidia.tensorrt.engine.gpu_name", lambda: "another GPU")
    backend.compile(function, function.graph.everything, BuildContext(1))
    assert len(logged("build engine")) == built + 1


def test_calls_on_another_stream_are_ordered_with_the_session(tmp_path):
    """The first call, on the null stream, makes the session; the next ones are on another stream."""
    import tvm
    import tvm_ffi

    function = convolutions(tmp_path)
    kernel = BACKENDS["onnxruntime-cuda"].compile(
        function, function.graph.everything, BuildContext(1)
    )
    create = tvm_ffi.get_global_func("collage.create_module")
    call = create(kernel.kind, "kernel", kernel.blob).get_function("kernel")
    (inputs,), shape = random_inputs(function, 0).values(), function.graph.types["y"].shape
    device = CudaDevice()
    arguments = device.tensors([inputs, np.zeros(shape, "float32")])
    call(*arguments)
    assert not logged("stream")
    for count in (2, 4):
        device.on_stream(call)(*arguments)
        assert len(logged("stream")) == count
    (expected,) = onnxruntime.InferenceSession(str(function.simplified)).run(None, {"x": inputs})
    np.testing.assert_allclose(arguments[1].numpy(), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="must be on a GPU"):
        call(*(tvm.runtime.tensor(argument.numpy()) for argument in arguments))


def test_memory_of_the_device_is_planned_once(tmp_path):
    """Later calls allocate nothing: the arena and the kernels' workspaces are kept."""
    plan = plan_of(windows(tmp_path), BACKENDS["cudnn"])
    run_plan(plan, tmp_path, calls=1)
    once = len(logged("allocate"))
    LOG.write_text("")
    run_plan(plan, tmp_path, calls=4)
    assert len(logged("allocate")) <= once


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_models_in_16_bits_keep_their_type(tmp_path, dtype):
    """The importer leaves every value in its dtype, and the benchmark's row has the result."""
    convolutions(tmp_path)
    file = in_dtype(tmp_path / "model.onnx", dtype, tmp_path)
    function = imported(file, tmp_path)
    assert {value_type.dtype for value_type in function.graph.types.values()} == {dtype}
    assert {value.dtype.name for value in function.weights.values()} == {dtype}
    values = reference_values(function, random_inputs(function, 0))
    assert {value.dtype.name for value in values.values()} == {dtype}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_model_in_16_bits_is_compiled_checked_and_timed(tmp_path, dtype):
    """The row of `make gpu-check`."""
    convolutions(tmp_path)
    file = in_dtype(tmp_path / "model.onnx", dtype, tmp_path)
    row = row_of("small", dtype, file, tmp_path, budget=CompileBudget(8.0, 200.0, 2))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[:2] == ["small", dtype], row
    assert all(float(cell) > 0 for cell in cells[2:4]), row
    assert cells[-1].split()[0] in BACKENDS


class Producer:
    """A tensor of some other framework: it records the requested streams."""

    def __init__(self, tensor):
        self.tensor, self.streams = tensor, []

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()

    def __dlpack__(self, *, stream=None):
        self.streams.append(stream)
        return self.tensor.__dlpack__()


@pytest.fixture
def served(tmp_path):
    """A bundle, an input on the host and on the device, and the output."""
    function = convolutions(tmp_path)
    bundle = bundle_of(plan_of(function, BACKENDS["tvm-cuda"]), tmp_path)
    (x,) = random_inputs(function, 3).values()
    session = onnxruntime.InferenceSession(str(function.simplified))
    (expected,) = session.run(None, {"x": x})
    return bundle, x, Producer(uploaded(x)), expected


def uploaded(array, skip=0):
    """A device tensor with the array's numbers, beginning `skip` elements into its memory."""
    size = array.size + skip
    device_tensor = _device_tensor((size,), str(array.dtype))
    cuda().copy(
        device_tensor.data_ptr() + skip * array.itemsize,
        array.ctypes.data,
        array.nbytes,
        1,
        stream=0,
    )
    view = tvm_ffi.get_global_func("runtime.TVMTensorCreateView")
    shape, dtype = tvm_ffi.Shape(array.shape), tvm_ffi.dtype(str(array.dtype))
    return view(device_tensor, shape, dtype, skip * array.itemsize)


def fetched(tensor):
    """Return the numbers of a producer of device memory, like a consumer on the default stream."""
    shared = tvm_ffi.from_dlpack(tensor.__dlpack__(stream=1))
    array = np.empty(shared.shape, str(shared.dtype))
    cuda().copy(array.ctypes.data, shared.data_ptr(), array.nbytes, 2, stream=0)
    return array


def test_tensors_of_the_device_go_in_and_out_without_a_copy(served):
    bundle, x, on_device, expected = served
    bundle.run_tensors({"x": on_device})  # captures what does not read the caller's memory
    LOG.write_text("")
    first = bundle.run_tensors({"x": on_device})["y"]
    assert not logged("run copy")
    second = bundle.run_tensors({"x": Producer(uploaded(2 * x))})["y"]
    np.testing.assert_allclose(fetched(first), expected, rtol=1e-4, atol=1e-5)
    assert np.abs(fetched(second) - expected).max() > 1e-3
    assert first.__dlpack_device__() == (2, 0)
    assert not logged("spoiled")


def test_a_producer_and_a_consumer_are_told_the_stream(served):
    """Ours has the handle 0x...; the default stream waits for it, and the producer for neither."""
    bundle, _, on_device, expected = served
    stream = ctypes.c_void_p()
    ctypes.CDLL(str(TOOLKIT / "lib" / "libcudart.so.13")).cudaStreamCreate(ctypes.byref(stream))
    bundle.run_tensors({"x": on_device})
    LOG.write_text("")
    output = bundle.run_tensors({"x": on_device}, stream.value)["y"]
    assert on_device.streams == [1, stream.value]
    assert logged("stream") == [f"stream {hex(stream.value)} waits for (nil)"]  # the call before
    np.testing.assert_allclose(fetched(output), expected, rtol=1e-4, atol=1e-5)
    assert logged("stream")[1:] == [f"stream (nil) waits for {hex(stream.value)}"]
    output.__dlpack__(stream=stream.value)
    output.__dlpack__(stream=-1)
    assert len(logged("stream")) == 2
    bundle.run({"x": np.zeros(on_device.tensor.shape, np.float32)})
    assert logged("stream")[2:] == [f"stream (nil) waits for {hex(stream.value)}"]


def test_what_lies_elsewhere_is_copied_once(served):
    bundle, x, on_device, expected = served
    close = {"rtol": 1e-4, "atol": 1e-5}
    np.testing.assert_allclose(bundle.run({"x": on_device})["y"], expected, **close)
    np.testing.assert_allclose(fetched(bundle.run_tensors({"x": x})["y"]), expected, **close)
    LOG.write_text("")
    unaligned = Producer(uploaded(x, skip=1))
    np.testing.assert_allclose(bundle.run({"x": unaligned})["y"], expected, **close)
    assert len(logged("run copy on device")) == 1
    with pytest.raises(InputError, match="has dtype float16; expected float32"):
        bundle.run_tensors({"x": Producer(uploaded(x.astype("float16")))})


def test_an_output_that_is_an_input_has_memory_of_its_own(tmp_path):
    nodes = [helper.make_node("Reshape", ["x", "s"], ["y"])]
    shape = numpy_helper.from_array(np.array([3, 2], np.int64), "s")
    function = _function(tmp_path, nodes, {"x": (2, 3)}, {"y": (3, 2)}, [shape])
    plan = FunctionPlan(function, (PlannedKernel(1, "host", None, ("x",), ("y",)),))
    x = np.arange(6, dtype="float32").reshape(2, 3)
    device_x = uploaded(x)
    output = bundle_of(plan, tmp_path).run_tensors({"x": Producer(device_x)})["y"]
    cuda().copy(device_x.data_ptr(), np.zeros(6, "float32").ctypes.data, 24, 1, stream=0)
    np.testing.assert_array_equal(output.numpy(), x.reshape(3, 2))


def test_a_bad_address_costs_its_candidate_alone(tmp_path):
    """The worker ends with the device's message; a new one measures the next kernels."""
    function = convolutions(tmp_path)
    reference = tmp_path / "reference"
    save_reference(reference_values(function, random_inputs(function, 0)), reference)
    backends = [BACKENDS["tvm-cuda"], CrashingBackend()]
    environment = Environment("cpu", "", 2, 1, "gpu", "test")
    measurer = LocalMeasurer(
        [function],
        backends,
        LocalCostTable(tmp_path),
        MeasuringConditions(environment, Target.CUDA),
        reference_dir=reference,
    )
    relu = next(1 << node.index for node in function.graph.nodes if node.op == "Relu")
    choices = [("tvm-cuda", ""), ("crashing", ""), ("tvm-cuda", "fallback")]
    costs = measurer.measure(
        [MeasurementRequest(function.name, relu, *choice) for choice in choices]
    )
    measurer.close()
    assert [cost.is_valid for cost in costs] == [True, False, True], [cost.reason for cost in costs]
    assert "an illegal memory access was encountered (700)" in costs[1].reason


LIBRARY = """
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>
#include "gpu.h"

extern "C" int __tvm_ffi_scale(void*, const TVMFFIAny* raw, int32_t count, TVMFFIAny*) {
  TVM_FFI_SAFE_CALL_BEGIN();
  tvm::ffi::PackedArgs args(reinterpret_cast<const tvm::ffi::AnyView*>(raw), count);
  if (count != 3) TVM_FFI_THROW(ValueError) << "three tensors, not " << count;
  auto* x = static_cast<const float*>(args[0].cast<DLTensor*>()->data);
  auto* factor = static_cast<const float*>(args[1].cast<DLTensor*>()->data);
  DLTensor* y = args[2].cast<DLTensor*>();
  auto* to = static_cast<float*>(y->data);
  int64_t size = y->shape[0] * y->shape[1] * y->shape[2] * y->shape[3];
  simulated::Enqueue(TVMFFIEnvGetStream(y->device.device_type, y->device.device_id), "library",
                     [=] { for (int64_t i = 0; i < size; ++i) to[i] = x[i] * factor[0]; });
  TVM_FFI_SAFE_CALL_END();
}
"""


def test_a_library_that_nvcc_made_travels_in_the_executable(tmp_path):
    import tvm_ffi.libinfo as libinfo

    nodes = [helper.make_node("Mul", ["x", "f"], ["y"])]
    function = _function(
        tmp_path, nodes, {"x": (1, 2, 3, 4)}, {"y": (1, 2, 3, 4)}, [_weight("f", 1)]
    )
    (tmp_path / "scale.cc").write_text(LIBRARY)
    folders = [libinfo.find_include_path(), libinfo.find_dlpack_include_path()]
    subprocess.run(
        ["g++", "-std=c++17", "-shared", "-fPIC", *(f"-I{folder}" for folder in folders),
         f"-I{TOOLKIT / 'include'}", str(tmp_path / "scale.cc"), f"-L{TOOLKIT / 'lib'}",
         "-l:libcudart.so.13", "-o", str(tmp_path / "scale.so")],
        check=True,
    )  # fmt: skip
    kernel = CudaKernel(tmp_path / "scale.so", "scale", (function.weights["f"],))
    planned = PlannedKernel(1, "cutlass", kernel, *region_values(function, 1))
    check(FunctionPlan(function, (planned,)), tmp_path)
    assert logged("captured library")


def test_values_whose_shape_depends_on_data_are_refused(tmp_path):
    nodes = [
        helper.make_node("NonZero", ["x"], ["z"]),
        helper.make_node("Cast", ["z"], ["y"], to=1),
    ]
    function = _function(tmp_path, nodes, {"x": (3, 3)}, {"y": None})
    planned = PlannedKernel(3, "none", None, *region_values(function, 3))
    with pytest.raises(BackendError, match="depends on data"):
        assemble([FunctionPlan(function, (planned,))], 1, tmp_path / "plan.so", Target.CUDA)
