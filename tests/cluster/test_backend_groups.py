"""Which backends share a Job: only work that is worth its pods stands alone, and pods are divided by work."""

import random

import pytest

from collage.backends.registry import all_backends
from collage.cluster.controller.backend_groups import named_groups, split_groups
from collage.cluster.controller.environments import MeasuringEnvironment, parse_environments
from collage.cluster.shards import KeyedRequest
from collage.cost import CostKey
from collage.errors import OptionError
from collage.measure.measurement_request import MeasurementRequest

GROUPS = {"onnxruntime": "graph", "openvino": "graph", "onednn": "library", "tvm": "native"}


def keyed_requests(counts):
    requests = [(name, number) for name, count in counts.items() for number in range(count)]
    return [
        KeyedRequest(CostKey(f"{place:064x}"), MeasurementRequest("main", 1 << number, name))
        for place, (name, number) in enumerate(requests)
    ]


@pytest.mark.parametrize(
    ("counts", "parallelism", "jobs"),
    [
        ({"tvm": 3}, 4, [("native", 4)]),
        ({"onednn": 10, "tvm": 20, "onnxruntime": 9}, 4, [("graph, library, native", 4)]),
        ({"onednn": 100, "tvm": 200, "onnxruntime": 9}, 4, [("native", 2), ("graph, library", 2)]),
        ({"onednn": 100, "tvm": 200}, 1, [("library, native", 1)]),
        ({"onednn": 100, "tvm": 300, "openvino": 60, "onnxruntime": 60}, 12,
         [("native", 7), ("graph", 3), ("library", 2)]),
        ({"onednn": 100, "tvm": 300, "openvino": 110}, 2, [("native", 1), ("graph, library", 1)]),
    ],
)  # fmt: skip
def test_a_group_with_enough_work_has_its_own_job(counts, parallelism, jobs):
    candidates = keyed_requests(counts)
    shares = split_groups(
        candidates, GROUPS, lambda _: 1.0, min_job_s=60.0, parallelism=parallelism
    )
    assert [(", ".join(share.groups), share.parallelism) for share in shares] == jobs
    assert sum(share.parallelism for share in shares) == parallelism
    assert sorted(candidate.key for share in shares for candidate in share.candidates) == [
        candidate.key for candidate in candidates
    ]


def test_the_division_is_independent_of_the_order():
    candidates = keyed_requests({"onednn": 100, "tvm": 200, "onnxruntime": 70})
    divisions = set()
    for seed in range(4):
        random.Random(seed).shuffle(candidates)
        shares = split_groups(candidates, GROUPS, lambda _: 1.0, min_job_s=60.0, parallelism=4)
        divisions.add(
            tuple((share.groups, frozenset(w.key for w in share.candidates)) for share in shares)
        )
    assert len(divisions) == 1


def test_settings_override_declared_groups():
    declared = {backend.name: backend.group for backend in all_backends()}
    assert declared["onnxruntime"] == declared["openvino"] == "graph"
    assert (declared["onednn"], declared["tvm"]) == ("library", "native")
    settings = {"intel": ("onednn", "openvino"), "absent": ("other",)}
    named = named_groups(declared, settings)
    assert named["onednn"] == named["openvino"] == "intel"
    assert named["onnxruntime"] == "graph"
    assert named.keys() == declared.keys()


def test_groups_come_from_the_operators_file():
    entry = {"backendGroups": {"runtimes": ["onnxruntime", "openvino"]}, "secondsPerGroup": 5}
    environment = parse_environments({"pool": entry}, "here")["pool"]
    assert environment.backend_groups == {"runtimes": ("onnxruntime", "openvino")}
    assert environment.seconds_per_group == 5
    assert MeasuringEnvironment().backend_groups == {}
    with pytest.raises(OptionError, match=r"backendGroups: onednn in more than one group"):
        parse_environments({"pool": {"backendGroups": {"a": ["onednn"], "b": ["onednn"]}}}, "here")
