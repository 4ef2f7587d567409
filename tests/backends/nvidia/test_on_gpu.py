"""Kernels compute the reference's numbers, in the worker code of measurements (`gpu`).

The first row is a CPU backend: it proves the check itself on every machine.
"""

import numpy as np
import pytest

from collage.backends.base import BuildContext
from collage.backends.nvidia.libraries import driver_reason
from collage.backends.registry import all_backends, class_path, known_backends
from collage.frontend.inputs import save_reference
from collage.measure.function_kernel_builder import FunctionKernelBuilder
from collage.measure.measurement_request import MeasurementRequest
from collage.measure.messages import Setup
from collage.measure.worker import first_run, timer_of
from collage.runtime.target import Target
from tests.backends.nvidia.layer import layer, nodes_of
from tests.backends.nvidia.plans import BACKENDS, check, plan_of, windows
from tests.backends.regions import convolutions

REGIONS = {
    "matmul": ("MatMul",),
    "matmul+bias": ("MatMul", "Add"),
    "matmul+bias+relu": ("MatMul", "Add", "Relu"),
    "norm": ("LayerNormalization",),
    "softmax": ("Softmax",),
}
TAKEN = {
    "cublas": ("matmul", "matmul+bias", "matmul+bias+relu"),
    "cutlass": ("matmul", "matmul+bias", "matmul+bias+relu"),
    "tvm-cuda": tuple(REGIONS),
    "cudnn": ("norm", "softmax"),
    "onnxruntime-cuda": tuple(REGIONS),
    "tensorrt": tuple(REGIONS),
}
on_gpu = (pytest.mark.gpu, pytest.mark.skipif(driver_reason() != "", reason="no GPU"))
ROWS = [("onnxruntime", "float32", "matmul+bias+relu")]
ROWS += [
    pytest.param(backend, dtype, region, marks=on_gpu)
    for backend, regions in TAKEN.items()
    for dtype in ("float32", "float16", "bfloat16")
    for region in regions
    if (backend, dtype, region) != ("tvm-cuda", "bfloat16", "norm")
]
ROWS += [
    pytest.param(backend, "tf32", region, marks=on_gpu)
    for backend, regions in TAKEN.items()
    for region in regions
    if "matmul" in region and BACKENDS[backend].reduced
]
MOST_ROUNDED = 5e-3
"""Of the scale of a product of 64 summands whose factors have 10 bits."""


def reference(x, w, b, s):
    """Every value of the layer, in double precision."""
    p = x @ w
    r = np.maximum(p + b, 0)
    mean, deviation = r.mean(-1, keepdims=True), r.std(-1, keepdims=True)
    n = (r - mean) / np.sqrt(deviation**2 + 1e-5) * s + b
    e = np.exp(n - n.max(-1, keepdims=True))
    e /= e.sum(-1, keepdims=True)
    return {"x": x, "p": p, "q": p + b, "r": r, "n": n, "e": e, "y": e @ r}


def setup_of(folder, backend, function) -> Setup:
    backend_object = next(candidate for candidate in all_backends() if candidate.name == backend)
    if reason := backend_object.availability().reason:
        pytest.skip(f"not on this GPU: {reason}")
    weights = [np.asarray(function.weights[name], np.float64) for name in ("w", "b", "s")]
    kind = function.weights["w"].dtype
    x = np.random.default_rng(0).standard_normal((1, 64, 64)).astype(kind)
    values = reference(x.astype(np.float64), *weights)
    save_reference({name: value.astype(kind) for name, value in values.items()}, folder)
    return Setup(
        loader="",
        functions=(),
        backends=(class_path(backend_object),),
        build=BuildContext(1),
        reference_dir=folder,
        memory_bytes=4 << 30,
        cache_flush_bytes=1 << 20,
        measure_dispatch_overhead=False,
        device=Target(backend_object.device),
    )


@pytest.mark.parametrize(("backend", "dtype", "region"), ROWS)
def test_a_kernel_computes_the_reference_and_has_a_cost(
    tmp_path, monkeypatch, backend, dtype, region
):
    variant, dtype = ("tf32", "float32") if dtype == "tf32" else ("", dtype)
    function = layer(tmp_path, dtype)
    loader = "collage.measure.function_kernel_builder.load_function"
    monkeypatch.setattr(loader, lambda path, name: function)
    setup = setup_of(tmp_path / "reference", backend, function)
    workshop = FunctionKernelBuilder(
        Setup(**{**vars(setup), "functions": (("main", function.simplified),)})
    )
    work = MeasurementRequest("main", nodes_of(function, *REGIONS[region]), backend, variant)
    prepared = workshop.prepare(work)
    wrong, error = first_run(prepared)
    assert not wrong
    assert error < MOST_ROUNDED
    timer = timer_of(setup, workshop)
    timing = timer.time(prepared.call, prepared.arguments, prepared.inputs)
    assert (
        0 < timing.cost.seconds < 1
    )  # what two events cost is off: a simulated kernel may take less


@pytest.mark.gpu
@pytest.mark.skipif(driver_reason() != "", reason="no GPU")
def test_every_toolchain_is_here_or_says_what_is_missing():
    for backend in known_backends(None, "cuda"):
        availability = backend.availability()
        assert availability.available != bool(availability.reason)
        assert "no driver" not in availability.reason


@pytest.mark.gpu
@pytest.mark.skipif(driver_reason() != "", reason="no GPU")
@pytest.mark.parametrize("model", [convolutions, windows])
@pytest.mark.parametrize("name", list(BACKENDS))
def test_an_executable_computes_the_models_numbers(tmp_path, model, name):
    """Three calls on three inputs: the first captures a CUDA graph, the others replay it."""
    if reason := BACKENDS[name].availability().reason:
        pytest.skip(f"not on this GPU: {reason}")
    check(plan_of(model(tmp_path), BACKENDS[name]), tmp_path, rtol=1e-3, atol=1e-4)
