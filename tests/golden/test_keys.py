"""Digests and keys by which stored costs, kernels, results and Jobs are found again."""

import re
from pathlib import Path
from types import SimpleNamespace

from collage.backends.base import Availability
from collage.backends.common.c_source import CSourceBackend
from collage.backends.common.tvm.tuned_schedules import write_trace
from collage.backends.nvidia.compiler import CudaSource, Nvcc
from collage.backends.registry import all_backends
from collage.cost.cost import cost_key
from collage.frontend.model_files import open_model
from collage.frontend.region import region_digest
from collage.measure.cache_flush import CacheFlush
from collage.measure.cost_key import CostKeys, launch_key
from collage.measure.device import DeviceIdentity
from collage.measure.measurement_request import MeasurementRequest
from collage.options import Options
from collage.pipeline.request import NodeInformation
from collage.pipeline.results import node_digest
from collage.pipeline.search_checkpoint import CheckpointFile
from collage.runtime.target import Target
from collage.search.function_search import EnumeratedFunction
from collage.search.problem import Option, Problem
from collage.tuning.records import workload_digest
from tests.support.golden import check_golden
from tests.support.golden_inputs import CPU, GPU, REQUEST, ExampleBackend, example_model

REGIONS = {
    "conv": [0], "conv+relu": [0, 1], "conv+add": [2, 3], "add+mul": [3, 4], "pool": [5],
    "reshape": [6], "matmul+softmax": [7, 8], "if": [11], "whole": range(12),
}  # fmt: skip


class FixedSource(CSourceBackend):
    """A backend of C sources with a pinned compiler."""

    name = "example-c"
    patterns = {}

    def availability(self):
        return Availability("", {"compiler": "cc 14.2"})


def nodes_of(region):
    return sum(1 << index for index in region)


def test_environment_digests():
    check_golden(
        "environments.json",
        {
            "protocols": {target: target.measurement_protocol for target in Target},
            "cpu": CPU.digest,
            "gpu": GPU.digest,
            "device": DeviceIdentity(
                "Example GPU", "90", "600.10", "1g.10gb", "clocks 1980 MHz", "time-sliced"
            ).text,
        },
    )


def test_identities_of_backends():
    masked = re.sub(r"source=[0-9a-f]{16}$", "source=*", FixedSource().identity)
    built_in = {
        one.name: re.sub(r"=\S+", "=*", one.identity)
        for one in all_backends()
        if one.device == "cpu" and type(one).__module__.startswith("collage.")
    }
    check_golden(
        "identities.json",
        {"fixed": ExampleBackend().identity, "c source": masked, "built in": built_in},
    )


def test_names_of_backends_and_variants():
    check_golden(
        "backends.json",
        {
            one.name: {
                "device": one.device,
                "style": one.style.value,
                "group": one.group,
                "variants": list(one.variants),
                "reduced": dict(one.reduced),
                "conflicts": sorted(one.conflicts),
            }
            for one in all_backends()
            if type(one).__module__.startswith("collage.")
        },
    )


def test_region_digests(example):
    found = {name: region_digest(example, nodes_of(nodes)) for name, nodes in REGIONS.items()}
    assert len(set(found.values())) == len(REGIONS)
    check_golden("regions.json", found)


def test_cost_keys(example):
    sweep = CacheFlush.of(20 << 20, cache_bytes=32 << 20)
    keys = CostKeys([example], [ExampleBackend()], CPU, sweep)
    requests = {
        "conv": MeasurementRequest(example.name, 1, "example"),
        "conv+relu, variant": MeasurementRequest(example.name, 3, "example", "fast"),
        "conv, label": MeasurementRequest(example.name, 1, "example", "", "blocked"),
    }
    found = {name: keys(work) for name, work in requests.items()}
    asked = []
    table = SimpleNamespace(get=lambda key: asked.append(key))
    assert keys.recall(table, requests["conv"]) is None
    assert asked[0] == found["conv"]
    check_golden(
        "cost_keys.json",
        {
            **found,
            "conv, sweeps": asked,
            "boundary": keys.boundary,
            "launch": launch_key(GPU),
            "plain": cost_key("0" * 64, "example 1", CPU),
        },
    )


def test_model_digests(tmp_path):
    found = {}
    for name, external in (("one file", False), ("external data", True)):
        folder = tmp_path / name
        folder.mkdir()
        with open_model(example_model(folder / "model.onnx", external)) as files:
            found[name] = files.digest
    check_golden("models.json", found)


def test_names_of_tuned_kernels(tmp_path):
    check_golden(
        "tuning_names.json",
        {
            "workload": workload_digest("0" * 64, "tvm 0.27"),
            "variant": write_trace(tmp_path, '[["example"],[]]'),
        },
    )


def test_name_of_a_search(example):
    key = (region_digest(example, 1), "example 1", "")
    problem = Problem(
        example.graph, [Option(1, key, "example")], conflicts={"a": {"b"}, "b": {"a"}}
    )
    searched = EnumeratedFunction(
        example, (), problem, {key: MeasurementRequest(example.name, 1, "example")}
    )
    found = {}
    for precision in ("fp32", "auto"):
        options = Options(cache_dir=Path("/cache"), precision=precision, measure_budget_s=40)
        session = SimpleNamespace(
            backends=[ExampleBackend()], environment=CPU, options=options, store=None
        )
        found[precision] = str(CheckpointFile.of(searched, session).path)
    check_golden("searches.json", found)


def test_digests_of_requests_and_nodes():
    facts = NodeInformation(environment=CPU, cache_bytes=32 << 20, backends={"tvm": "tvm tvm=0.27"})
    check_golden("requests.json", {"request": REQUEST.digest, "node": node_digest(facts)})


def test_digest_of_cuda_source():
    nvcc = Nvcc(Path("/nvcc"), Path("/"), "13.5")
    check_golden("cuda_source.json", {"kernel": CudaSource("code", ("-O3",)).digest(nvcc)})
