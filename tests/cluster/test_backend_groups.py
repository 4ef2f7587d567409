"""Which backends share a Job: only work that is worth its pods stands alone, and pods are divided by work."""

import random

import pytest

from collage.backends.registry import all_backends
from collage.cluster.controller.backend_groups import named_groups, split_groups
from collage.cluster.controller.environments import MeasuringEnvironment, parse_environments
from collage.cluster.shards import Wanted
from collage.cost import CostKey
from collage.errors import OptionError
from collage.measure.measurement_request import Work

GROUPS = {"onnxruntime": "graph", "openvino": "graph", "onednn": "library", "tvm": "native"}


def wanted(counts):
    works = [(name, number) for name, count in counts.items() for number in range(count)]
    return [
        Wanted(CostKey(f"{place:064x}"), Work("main", 1 << number, name))
        for place, (name, number) in enumerate(works)
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
def test_a_group_has_a_job_of_its_own_where_that_is_worth_its_pods(counts, parallelism, jobs):
    some = wanted(counts)
    shares = split_groups(some, GROUPS, lambda _: 1.0, 60.0, parallelism)
    assert [(", ".join(one.groups), one.parallelism) for one in shares] == jobs
    assert sum(one.parallelism for one in shares) == parallelism
    assert sorted(one.key for share in shares for one in share.wanted) == [one.key for one in some]


def test_the_division_does_not_depend_on_the_order():
    some = wanted({"onednn": 100, "tvm": 200, "onnxruntime": 70})
    found = set()
    for seed in range(4):
        random.Random(seed).shuffle(some)
        shares = split_groups(some, GROUPS, lambda _: 1.0, 60.0, 4)
        found.add(tuple((one.groups, frozenset(w.key for w in one.wanted)) for one in shares))
    assert len(found) == 1


def test_every_backend_declares_a_group_and_settings_come_first():
    declared = {one.name: one.group for one in all_backends()}
    assert declared["onnxruntime"] == declared["openvino"] == "graph"
    assert (declared["onednn"], declared["tvm"]) == ("library", "native")
    given = {"intel": ("onednn", "openvino"), "absent": ("other",)}
    named = named_groups(declared, given)
    assert named["onednn"] == named["openvino"] == "intel"
    assert named["onnxruntime"] == "graph"
    assert named.keys() == declared.keys()


def test_groups_come_from_the_operators_file():
    entry = {"backendGroups": {"runtimes": ["onnxruntime", "openvino"]}, "secondsPerGroup": 5}
    found = parse_environments({"pool": entry}, "here")["pool"]
    assert found.backend_groups == {"runtimes": ("onnxruntime", "openvino")}
    assert found.seconds_per_group == 5
    assert MeasuringEnvironment().backend_groups == {}
    with pytest.raises(OptionError, match=r"backendGroups: onednn in more than one group"):
        parse_environments({"pool": {"backendGroups": {"a": ["onednn"], "b": ["onednn"]}}}, "here")
