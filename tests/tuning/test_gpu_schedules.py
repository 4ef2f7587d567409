"""Schedules that are searched for on a GPU: what is drawn fits every GPU. No GPU is needed for that."""

import re
from math import prod

import pytest
import tvm

from collage.backends.base import BuildContext
from collage.backends.common.tvm.lower import FUSED_SYMBOL, lower
from collage.backends.common.tvm.tuned_schedules import TUNED_PREFIX, apply_trace, write_trace
from collage.backends.nvidia.tvm_cuda import TvmCudaBackend
from collage.backends.nvidia.tvm_cuda.schedule import cuda_target
from collage.errors import BackendError
from collage.frontend.region import region_relax
from collage.graph.index_set import indices
from collage.measure.measurement_request import MeasurementRequest
from collage.runtime.target import Target
from collage.tuning import targets
from collage.tuning.records import TuningRecords
from collage.tuning.schedule_search import TraceSearch, trace_text
from collage.tuning.tuner import Tuner
from collage.tuning.tuning_tasks import tunable_regions
from tests.backends.nvidia.layer import layer, nodes_of
from tests.backends.regions import convolutions
from tests.tuning.regions import ENVIRONMENT

pytestmark = pytest.mark.full

THREADS, SHARED_BYTES = 1024, 48 << 10
"""What a block may have on every GPU since compute capability 8.0, unless it asks for more."""


def convolution(path):
    function = convolutions(path)
    return function, region_of(function, "Conv", "Relu")


def half_product(path):
    function = layer(path, "float16")
    return function, nodes_of(function, "MatMul", "Add", "Relu")


def region_of(function, *ops):
    for nodes in tunable_regions(function, TvmCudaBackend()):
        if tuple(function.graph.nodes[i].op for i in indices(nodes)) == ops:
            return nodes
    raise AssertionError(f"no region {ops}")


@pytest.fixture(scope="module", params=[convolution, half_product])
def drawn(request, tmp_path_factory):
    """A region, its function, and a few schedules of it."""
    function, nodes = request.param(tmp_path_factory.mktemp("model"))
    lowered = lower(region_relax(function, nodes)).function
    search = TraceSearch(lowered, cuda_target(), threads=1, seed=1, measured=())
    candidates = search.draw()
    assert len(candidates) >= 4
    return function, nodes, lowered, candidates


def test_every_schedule_binds_threads_and_fits_a_block(drawn):
    _, _, _, candidates = drawn
    for candidate in candidates:
        text = candidate.sch.mod.script()
        threads = [
            int(extent)
            for extent in re.findall(r'binding\((?:T\.int64\()?(\d+)\)?, thread="threadIdx', text)
        ]
        assert text.count('thread="blockIdx') == 1, "one kernel does it all"
        assert "async" not in text
        assert threads
        assert max(threads) <= THREADS
        assert shared_bytes(text) <= SHARED_BYTES
    assert any(shared_bytes(candidate.sch.mod.script()) for candidate in candidates)


def shared_bytes(text):
    """Bytes in the memory that a block's threads share; every array of it counts whole."""
    shared = re.findall(r'alloc_buffer\(\((.*?)\)(?:, "(\w+)")?, scope="shared"\)', text)
    return sum(
        prod(map(int, re.findall(r"\d+", re.sub(r"int\d+", "", shape))))
        * tvm.DataType(dtype or "float32").bits
        // 8
        for shape, dtype in shared
    )


def test_a_recorded_schedule_becomes_the_same_kernel(drawn, tmp_path):
    function, nodes, lowered, candidates = drawn
    backend, context = TvmCudaBackend(), BuildContext(1, tmp_path)
    trace = trace_text(candidates[0])
    variant = write_trace(tmp_path, trace)
    assert variant.startswith(TUNED_PREFIX)
    kernel = backend.compile(function, nodes, context, variant)
    assert kernel.device == "cuda"
    expected = candidates[0].sch.mod
    assert kernel.module.script() == apply_trace(lowered, trace, Target.CUDA).script()
    assert kernel.module[FUSED_SYMBOL].script() == expected[FUSED_SYMBOL].script()
    assert kernel.module.script() != backend.compile(function, nodes, context).module.script()


def test_a_search_continues_from_measured_traces(drawn):
    """Other schedules are drawn; what other rules wrote is skipped."""
    _, _, lowered, candidates = drawn
    measured = [
        (trace_text(candidate), 1e-3 / (place + 1)) for place, candidate in enumerate(candidates)
    ]
    unusable = [("[[], []]", 1e-3), ("[]", 1e-3)]
    again = TraceSearch(lowered, cuda_target(), threads=1, seed=2, measured=[*measured, *unusable])
    assert (
        len(
            {trace_text(candidate) for candidate in again.draw()} - {trace for trace, _ in measured}
        )
        >= 4
    )


def test_devices_share_no_records(tmp_path, monkeypatch):
    """A GPU's records are of another toolchain than the CPU's, and than those of another architecture."""
    function, nodes = convolution(tmp_path)

    def workload(device):
        records = TuningRecords(tmp_path / "store", ENVIRONMENT)
        tuner = Tuner(
            [function], records, 1, reference_dir=tmp_path, cache_flush_bytes=1, device=device
        )  # fmt: skip
        return tuner.workload(
            MeasurementRequest(function.name, nodes, targets.tunable(device).name)
        )

    workloads = {workload(Target.CPU), workload(Target.CUDA)}
    monkeypatch.setattr("collage.backends.nvidia.tvm_cuda.schedule.architecture", lambda: "sm_86")
    workloads.add(workload(Target.CUDA))
    assert len(workloads) == 3


def test_a_variant_without_a_record_is_refused(tmp_path):
    function, nodes = convolution(tmp_path)
    backend, context = TvmCudaBackend(), BuildContext(1, tmp_path)
    with pytest.raises(BackendError, match="cannot be read"):
        backend.compile(function, nodes, context, TUNED_PREFIX + "0" * 32)
    with pytest.raises(BackendError, match="does not fit"):
        backend.compile(function, nodes, context, write_trace(tmp_path, "[]"))
