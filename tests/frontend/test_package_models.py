"""Trained models inside packages: imported, cut into regions, and run as one executable."""

from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import pytest

from collage.assemble import FunctionPlan, PlannedKernel, assemble
from collage.backends.base import Backend, BuildContext
from collage.backends.registry import available_backends
from collage.errors import BackendError
from collage.frontend import Function, Model, import_model
from collage.frontend.inputs import complete_inputs
from collage.frontend.region import region_values
from collage.frontend.sample_files import read_samples
from collage.frontend.samples import with_samples
from collage.graph.index_set import IndexSet, indices
from collage.verify.accuracy_samples import write_expected, write_samples
from collage.verify.benchmark_target import BenchmarkTarget
from collage.verify.interleaved_benchmark import InterleavedBenchmark
from collage.verify.original_model import Original
from collage.verify.plan_executable import function_signature
from tests.frontend.package_models import PACKAGE_MODELS, PackageModel

pytestmark = pytest.mark.full

REGION_NODES = 40
CONTEXT = BuildContext(1)


def imported(entry: PackageModel, folder: Path) -> Model:
    model = import_model(entry.path, shapes=[entry.shapes], work_dir=folder)
    return with_samples(model, read_samples((), entry.inputs))


def intervals(function: Function) -> Iterator[IndexSet]:
    """Cut the topological order where all values that cross have a shape."""
    graph, start = function.graph, 0
    for end in range(1, len(graph) + 1):
        nodes = (1 << end) - (1 << start)
        crossing = {*region_values(function, nodes)[1]} - {*graph.outputs}
        is_cut = end - start >= REGION_NODES and crossing <= graph.types.keys()
        if is_cut or end == len(graph):
            yield nodes
            start = end


def compiled(function: Function, nodes: IndexSet, preferred: Backend, other: Backend):
    """Compile with the preferred backend where it takes every node, else with the other."""
    if not any(preferred.unsupported(function, node) for node in indices(nodes)):
        try:
            return PlannedKernel(
                nodes,
                preferred.name,
                preferred.compile(function, nodes, CONTEXT),
                *region_values(function, nodes),
            )
        except BackendError:
            assert preferred is not other
    kernel = other.compile(function, nodes, CONTEXT)
    return PlannedKernel(nodes, other.name, kernel, *region_values(function, nodes))


@pytest.mark.parametrize("name", PACKAGE_MODELS)
def test_a_mix_computes_the_models_numbers(name, tmp_path):
    """Regions alternate between OpenVINO and ONNX Runtime; three sets of inputs."""
    entry = PACKAGE_MODELS[name]
    model = imported(entry, tmp_path / "import")
    function = model.functions[0]
    onnxruntime, openvino = available_backends(("onnxruntime", "openvino"))
    turns = cycle((openvino, onnxruntime))
    kernels = [
        compiled(function, nodes, backend, onnxruntime)
        for nodes, backend in zip(intervals(function), turns, strict=False)
    ]
    assemble([FunctionPlan(function, tuple(kernels))], 1, tmp_path / "plan.so")
    sets = [complete_inputs(function, {}, seed) for seed in range(3)]
    write_samples(function, sets, tmp_path / "samples")
    original, graph = Original(entry.path, model.float_types), function.graph
    write_expected(
        tmp_path / "samples",
        lambda values: original.run(graph.outputs, dict(zip(graph.inputs, values, strict=True))),
    )
    target = BenchmarkTarget(
        "plan", "executable", tmp_path / "plan.so", function_signature(function)
    )
    with InterleavedBenchmark(sets[0], 1, tmp_path) as benchmark:
        assert benchmark.enter([target]) == {}
        assert benchmark.differences("plan", tmp_path / "samples") == ""
