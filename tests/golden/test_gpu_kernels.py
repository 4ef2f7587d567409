"""Kernels for a GPU, recorded without one: blobs, files of linked kernels, names of cached engines."""

import re

import numpy as np
import pytest

from collage.backends.base import BuildContext, CudaKernel, PluginKernel
from collage.backends.nvidia.tensorrt import engine
from collage.backends.registry import known_backends
from collage.frontend.region import region_onnx
from collage.measure.kernel_file import kernel_name, load_kernel, save_kernel
from collage.measure.measurement_request import MeasurementRequest
from collage.runtime.blob import unpack
from tests.support.golden import check_golden

KERNELS = {
    "cublas": [["MatMul"]],
    "cudnn": [["Conv", "Relu"], ["Softmax"]],
    "onnxruntime-cuda": [["Conv", "Relu"]],
    "onnxruntime-host": [["Conv", "Relu"]],
    "tensorrt": [["Conv", "Relu"]],
}
"""Regions by backend, each named by the operators of its nodes."""
SESSIONS = ("onnxruntime-cuda", "onnxruntime-host", "tensorrt")
"""Backends whose tensor is an ONNX model; its size depends on the version of ONNX."""


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    """Let every machine build for a GPU elsewhere, with the same optional libraries."""
    monkeypatch.setattr("collage.backends.nvidia.tensorrt.driver_reason", lambda: "no driver")
    monkeypatch.setattr("collage.backends.nvidia.cudnn.library_reason", lambda name: "")


def region(function, operators):
    """The first node of each operator, as a node set."""
    found = [node.op for node in function.graph.nodes]
    return sum(1 << found.index(operator) for operator in operators)


def recorded(kernel, *, session):
    """Kind and header of a kernel."""
    assert isinstance(kernel, PluginKernel)
    header, _ = unpack(kernel.blob)
    if session:
        header["tensors"] = [tensor["dtype"] for tensor in header["tensors"]]
    return {"kind": kernel.kind, "allocates": kernel.allocates, "header": header}


@pytest.mark.parametrize("name", KERNELS)
def test_blobs_of_gpu_backends(example, name):
    """The first variant whole; the others by what their headers have instead."""
    (backend,) = known_backends([name], "cuda")
    kernels = {}
    for operators in KERNELS[name]:
        nodes = region(example, operators)
        first, *others = backend.variants
        kernel = backend.compile(example, nodes, BuildContext(2), first)
        whole = recorded(kernel, session=name in SESSIONS)
        kernels[" ".join(operators)] = whole
        for variant in others if operators != ["Softmax"] else ():
            header = recorded(
                backend.compile(example, nodes, BuildContext(2), variant), session=name in SESSIONS
            )["header"]
            changed = {
                key: header[key] for key in header if header[key] != whole["header"].get(key)
            }
            kernels[f"{' '.join(operators)}, {variant}"] = changed
    check_golden(f"gpu_kernel_{name}.json", kernels)


def test_files_of_linked_kernels(tmp_path):
    library = tmp_path / "linked.so"
    library.write_bytes(b"a shared library")
    constants = (np.arange(3, dtype=np.int32), np.ones((2, 2), np.float32))
    file = tmp_path / "kernel"
    save_kernel(CudaKernel(library, "kernel_0", constants, 4096), 1, 0.5, file)
    kernel, build_s = load_kernel(file)
    assert (kernel.symbol, kernel.scratch, build_s) == ("kernel_0", 4096, 0.5)
    assert kernel.file.read_bytes() == b"a shared library"
    assert all(map(np.array_equal, kernel.constants, constants))
    head, _, payload = file.read_bytes().partition(b"\n")
    check_golden("linked_kernel_file.txt", f"{head.decode()}\n{payload.hex()}")


def test_names_of_kernel_files():
    requests = {
        "first variant": MeasurementRequest("main", 0b101, "onednn"),
        "another variant": MeasurementRequest("main", 1 << 70, "tvm", "fast"),
    }
    check_golden(
        "kernel_names.json", {name: kernel_name(request) for name, request in requests.items()}
    )


@pytest.mark.parametrize("rounds", [False, True])
def test_names_of_cached_engines(tmp_path, monkeypatch, rounds):
    monkeypatch.setattr(engine, "gpu_name", lambda: "Example GPU")
    monkeypatch.setattr(engine, "compute_capability", lambda: "90")

    def build(blob, *, rounds):
        (builder,) = (options for options in built if options)
        assert blob == b"region"
        with open(builder["trt_ep_context_file_path"], "wb") as out:
            out.write(b"engine")

    built = []

    def kernel(options):
        built.append(options)
        return PluginKernel("onnxruntime-tensorrt", b"region", libraries=frozenset())

    monkeypatch.setattr(engine, "build", build)
    kept = engine.kept_engine(kernel, "tensorrt nvinfer=10", tmp_path, rounds=rounds)
    assert kept == b"engine"
    (file,) = tmp_path.glob("*.onnx")
    assert re.fullmatch("[0-9a-f]{64}", file.stem)
    options = {name: str(value).replace(str(tmp_path), "*") for name, value in built[-1].items()}
    options["trt_ep_context_file_path"] = "*"
    check_golden(
        f"engine_{'tf32' if rounds else 'exact'}.json", {"file": file.name, "options": options}
    )


def test_the_model_of_a_region(example):
    """What ONNX Runtime and TensorRT are given: nodes, names and types, without the weights' bytes."""
    model = region_onnx(example, region(example, ["Conv", "Relu"]))
    check_golden(
        "region_model.json",
        {
            "nodes": [
                [node.op_type, list(node.input), list(node.output)] for node in model.graph.node
            ],
            "inputs": [value.name for value in model.graph.input],
            "outputs": [value.name for value in model.graph.output],
            "weights": [[tensor.name, list(tensor.dims)] for tensor in model.graph.initializer],
        },
    )
