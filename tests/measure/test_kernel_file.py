"""Kernels that are built by one measurer and timed by another one, which builds nothing."""

import math

import numpy as np
import pytest

from collage.backends.base import PluginKernel
from collage.backends.registry import available_backends
from collage.cost import LocalCostTable
from collage.errors import BackendError
from collage.measure.callable_kernel import BlobKernel
from collage.measure.conditions import MeasuringConditions, WorkerLimits
from collage.measure.environment import this_environment
from collage.measure.kernel_file import kernel_name, load_kernel, save_kernel
from collage.measure.local import LocalMeasurer
from collage.measure.measurement_request import MeasurementRequest
from collage.measure.messages import KernelFolder
from collage.options import Options
from collage.pipeline.compile_context import open_compile_context
from collage.pipeline.search_stage import enumerated_function, imported, sampled
from tests.support.models import small_model


@pytest.fixture(scope="module")
def sampled_function(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    names = [backend.name for backend in available_backends() if backend.name != "openvino"]
    options = Options(backends=tuple(names), cache_dir=folder, threads=1)
    with open_compile_context(options) as context:
        model = imported(small_model(folder / "small.onnx"), context)
        function = model.functions[0]
        reference = sampled(model, function, context).reference_dir
        requests = list(enumerated_function(function, context).work.values())
        yield function, reference, context, requests


def measurer(sampled_function, folder, table, builds=False):
    function, reference, context, _ = sampled_function
    return LocalMeasurer(
        [function],
        context.backends,
        LocalCostTable(folder / table),
        MeasuringConditions(this_environment(1)),
        reference_dir=reference,
        limits=WorkerLimits(workers=2),
        kernels=KernelFolder(folder / "kernels", builds),
    )


def test_a_kernel_file_is_measured_without_a_build(sampled_function, tmp_path):
    requests = sampled_function[-1]
    distinct = {(work.backend, work.variant, work.nodes.bit_count()): work for work in requests}
    chosen = sorted(distinct.values())[:40]
    assert "tvm" in {work.backend for work in chosen} or "tvm" not in {w.backend for w in requests}
    (tmp_path / "kernels").mkdir()
    builder = measurer(sampled_function, tmp_path, "builds", builds=True)
    built = builder.measure(chosen)
    builder.close()
    files = {file.name for file in (tmp_path / "kernels").iterdir()}
    assert files == {
        kernel_name(work) for work, cost in zip(chosen, built, strict=True) if cost.is_valid
    }
    assert builder.built == len(files) > 5
    assert all(cost.build_s == cost.seconds > 0 for cost in built if cost.is_valid)

    timed = [work for work, cost in zip(chosen, built, strict=True) if cost.is_valid]
    loader = measurer(sampled_function, tmp_path, "costs")
    costs = loader.measure(timed)
    loader.close()
    assert (loader.measured, loader.built) == (len(timed), 0)
    assert all(cost.is_valid for cost in costs), [cost.reason for cost in costs]
    assert all(cost.build_s > 0 for cost in costs)
    assert math.isfinite(sum(cost.seconds for cost in costs))


def test_a_file_that_holds_no_kernel_is_refused(tmp_path):
    for content in (b"", b"{}", b'{"form": "library"}\n', b"\xff\xfe"):
        (tmp_path / "kernel").write_bytes(content)
        with pytest.raises(BackendError, match="kernel holds no kernel"):
            load_kernel(tmp_path / "kernel")


def test_a_plugins_kernel_is_kept_as_it_is(tmp_path):
    blob = b"\x00line\nand more"
    kernel = PluginKernel("kind", blob, True, libraries=frozenset({"openvino"}))
    save_kernel(kernel, 1, 0.5, tmp_path / "kernel")
    assert load_kernel(tmp_path / "kernel") == (BlobKernel("kind", blob, True), 0.5)


def test_different_requests_have_different_file_names():
    requests = [
        MeasurementRequest("f", nodes, "b", variant) for nodes in (1, 2) for variant in ("", "v")
    ]
    assert len({kernel_name(work) for work in requests}) == 4
    assert kernel_name(MeasurementRequest("f", 1, "b")) == kernel_name(
        MeasurementRequest("f", 1, "b", "")
    )
    assert np.all([len(kernel_name(work)) == 64 for work in requests])
