"""TF32: its backends, its regions, and no change without permission; without a GPU."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from collage.backends.base import BuildContext
from collage.backends.nvidia.architecture import TOLD, tf32_reason
from collage.backends.nvidia.libraries import driver_reason
from collage.backends.registry import known_backends
from collage.errors import BackendError
from collage.graph.index_set import index_set
from collage.report.precision import PrecisionPermission, precision_result
from collage.rules import find_candidates
from collage.rules.candidates import product_nodes
from collage.runtime.blob import unpack
from collage.runtime.plugin import FULL_PRECISION, thread_environment
from collage.runtime.target import Target
from collage.verify.baselines import REDUCED, original_frameworks
from tests.backends.nvidia import cudnn_models as models
from tests.backends.nvidia.layer import TYPES, layer
from tests.backends.regions import _function, _weight

BACKENDS = {backend.name: backend for backend in known_backends(None, "cuda")}
ROUNDING = ("cublas", "cudnn", "cutlass", "onnxruntime-cuda", "tensorrt")
pytestmark = pytest.mark.skipif(driver_reason() == "", reason="this machine has a real GPU")


def models_of(folder, dtype="float32"):
    (folder / "convolution").mkdir()
    return [layer(folder, dtype), models.convolution(folder / "convolution", dtype, "relu")]


def test_these_backends_have_variants_in_tf32():
    assert {name for name, backend in BACKENDS.items() if backend.reduced} == set(ROUNDING)
    for name in ROUNDING:
        assert set(BACKENDS[name].reduced.values()) == {"tf32"}
        assert not set(BACKENDS[name].reduced) & set(BACKENDS[name].variants)


@pytest.mark.parametrize("name", ROUNDING)
def test_tf32_needs_permission_and_a_region_with_a_product(tmp_path, name):
    backend, count = BACKENDS[name], 0
    for function in models_of(tmp_path):
        exact = find_candidates(function, [backend])
        allowed = find_candidates(function, [backend], may_reduce=True)
        reduced = [candidate for candidate in allowed if candidate.variant in backend.reduced]
        assert [candidate.key for candidate in allowed if candidate not in reduced] == [
            candidate.key for candidate in exact
        ]
        assert all(candidate.inside & product_nodes(function) for candidate in reduced)
        count += len(reduced)
    assert count


@pytest.mark.parametrize("dtype", set(TYPES) - {"float32"})
@pytest.mark.parametrize("name", ROUNDING)
def test_what_is_in_16_bits_has_nothing_to_round(tmp_path, name, dtype):
    for function in models_of(tmp_path, dtype):
        exact = find_candidates(function, [BACKENDS[name]])
        allowed = find_candidates(function, [BACKENDS[name]], may_reduce=True)
        assert [candidate.key for candidate in allowed] == [candidate.key for candidate in exact]


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        (TOLD, "75", "this GPU has compute capability 7.5, and TF32 begins with 8.0"),
        (*next(iter(FULL_PRECISION.items())), "NVIDIA_TF32_OVERRIDE=0 keeps all"),
    ],
)
def test_where_there_is_none_the_reason_is_said(tmp_path, monkeypatch, variable, value, words):
    assert tf32_reason() == ""
    monkeypatch.setenv(variable, value)
    function = layer(tmp_path, "float32")
    for name in ROUNDING:
        assert words in BACKENDS[name].reduced_reason()
        allowed = find_candidates(function, [BACKENDS[name]], may_reduce=True)
        assert not any(candidate.variant in BACKENDS[name].reduced for candidate in allowed)
        with pytest.raises(BackendError, match=f"{name} has no TF32 here: "):
            BACKENDS[name].compile(function, index_set([0]), BuildContext(1), "tf32")
    assert BACKENDS["tvm-cuda"].reduced_reason() == ""


def test_the_report_names_what_is_not_offered():
    result = precision_result(PrecisionPermission(0.01, {"cublas": "tf32: no GPU"}), [])
    assert result.notes == ("cublas offers no tf32: no GPU",)


@pytest.mark.parametrize(
    ("name", "entry"), [("cublas", ("compute", "tf32")), ("cudnn", ("tf32", 1))]
)
def test_a_blob_says_it_only_where_it_is_so(tmp_path, name, entry):
    nodes = index_set([0])
    function = models_of(tmp_path)[name == "cudnn"]
    exact, _ = unpack(BACKENDS[name].compile(function, nodes, BuildContext(1)).blob)
    reduced, _ = unpack(BACKENDS[name].compile(function, nodes, BuildContext(1), "tf32").blob)
    assert entry[0] not in exact
    assert reduced[entry[0]] == entry[1]
    assert (exact.get("exact"), reduced.get("exact")) in ((None, None), (1, 0))
    assert exact.keys() == reduced.keys() - {entry[0]}


def gelu(path):
    """A product with a bias and GELU with erf, in rows of 12."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["v"]),
        *models.ACTIVATIONS["gelu_erf"],
    ]
    numbers = [
        onnx.numpy_helper.from_array(np.float32(models.NUMBERS[constant]), constant)
        for constant in ("root", "one", "half")
    ]
    weights = [_weight("w", 12, 12), _weight("b", 12), *numbers]
    return _function(path, nodes, {"x": (4, 12)}, {"y": (4, 12)}, weights)


def test_what_is_within_a_rounding_of_tf32_is_taken_too(tmp_path):
    """cuBLAS's GELU is near the one with erf; CUTLASS requires rows of 16 bytes on tensor cores only."""
    function = gelu(tmp_path)
    all_nodes = function.graph.everything
    for name, exact in (("cublas", False), ("cutlass", True)):
        backend = BACKENDS[name]
        candidates = find_candidates(function, [backend], may_reduce=True)
        variants = {candidate.variant for candidate in candidates if candidate.inside == all_nodes}
        assert variants == {*backend.reduced, *(backend.variants if exact else ())}


def test_rows_that_tensor_cores_cannot_read_are_refused(tmp_path):
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    sizes = {"x": (4, 10)}, {"y": (4, 6)}
    function = _function(tmp_path, [node], *sizes, [_weight("w", 10, 6)])
    with pytest.raises(BackendError, match="rows of 6: float32 needs multiples of 4"):
        BACKENDS["cutlass"].describe(function, index_set([0]), "tf32")
    gemm, _ = BACKENDS["cutlass"].describe(function, index_set([0]), "")
    assert gemm.arithmetic.exact


def test_frameworks_on_a_gpu_get_the_same_permission(tmp_path, monkeypatch):
    providers = ["TensorrtExecutionProvider", "CUDAExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: providers)

    def on_gpu(function, may_reduce):
        frameworks = original_frameworks(
            function.simplified, may_reduce=may_reduce, device=Target.CUDA, engines=tmp_path
        )
        return {
            framework.name: framework
            for framework in frameworks
            if framework.name.startswith(("onnxruntime-", "tensor"))
        }

    function = layer(tmp_path, "float32")
    onnx.save(model_of(function), function.simplified)
    assert set(on_gpu(function, False)) == {"onnxruntime-cuda", "tensorrt"}
    frameworks = on_gpu(function, True)
    names = {"onnxruntime-cuda-tf32", "tensorrt-tf32"}
    assert set(frameworks) - {"onnxruntime-cuda", "tensorrt"} == names == REDUCED & set(frameworks)
    options = [frameworks[f"onnxruntime-cuda{end}"].options for end in ("", "-tf32")]
    assert [entry["use_tf32"] for entry in options] == ["0", "1"]
    engines = {
        frameworks[f"tensorrt{end}"].options["trt_engine_cache_path"] for end in ("", "-tf32")
    }
    assert len(engines) == 2
    half = layer(tmp_path, "float16")
    onnx.save(model_of(half), half.simplified)
    assert set(on_gpu(half, True)) == {"onnxruntime-cuda", "tensorrt"}


def model_of(function):
    """The whole function as a model."""
    from collage.frontend.region import region_onnx

    return region_onnx(function, function.graph.everything)


def test_no_process_that_runs_kernels_is_kept_from_it():
    """Frameworks without permission disable it themselves; the variable would affect the other ones."""
    assert not thread_environment(1).keys() & FULL_PRECISION.keys()
