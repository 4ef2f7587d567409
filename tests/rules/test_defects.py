"""The defects of the public implementations (D1-D15), one test each, built to fail on the defect."""

import io
import math
import random

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from collage.backends.base import BackendStyle
from collage.cost.cost import Cost, Environment, cost_key
from collage.cost.table import LocalCostTable
from collage.errors import SearchError
from collage.frontend import import_model
from collage.frontend.inputs import random_inputs
from collage.graph.builder import GraphBuilder
from collage.graph.contract import quotient_order
from collage.graph.index_set import index_set, indices
from collage.graph.op_pattern import OpPatternKind as Kind
from collage.graph.sub_graph import SubGraph, SubGraphConfig
from collage.measure.kernel_builder import Prepared
from collage.measure.measurement_request import MeasurementRequest
from collage.measure.messages import Task
from collage.measure.timing import Timer
from collage.measure.worker import Worker
from collage.options import Options
from collage.rules import (
    AllSimple,
    Candidate,
    Combine,
    Composite,
    DFPattern,
    OpCallByKind,
    PartitionSpec,
    Regions,
    Singles,
    TupleProj,
    Union,
    coalesce,
    find_candidates,
    op,
)
from collage.rules.combine import FUSE_OPS_KINDS
from collage.search.problem import Option, Problem
from collage.search.shortest_path import find_plan
from tests.support.fake_backend import FakeBackend, Graph
from tests.support.graphs import chain
from tests.support.mock_costs import list_candidates, search, tvm_rule

SPEC = PartitionSpec("test")


def _spread(graph, *groups, backends=("a", "b")):
    """Single-node candidates of the first group on the first backend, and so on."""
    return [
        Singles(index_set([node])).candidates(graph, PartitionSpec(backend))[0]
        for backend, nodes in zip(backends, groups, strict=True)
        for node in nodes
    ]


def test_d01_fan_in_unions_are_found():
    """conv + relu(skip) -> add -> relu is one candidate."""
    graph = GraphBuilder()
    conv = graph.add("Conv", graph.input("x"))
    skip = graph.add("Relu", graph.input("skip"))
    graph.add("Relu", graph.add("Add", conv, skip))
    graph = graph.build()
    rule = Combine(OpCallByKind(), (AllSimple(FUSE_OPS_KINDS),))
    assert graph.everything in {candidate.inside for candidate in rule.candidates(graph, SPEC)}


def test_d02_coalescing_keeps_partitions_disjoint():
    """x feeds y and z: not {x, y} and {x, z}."""
    graph = GraphBuilder()
    x = graph.add("Relu", graph.input("x"))
    graph.returns(graph.add("Relu", x), graph.add("Relu", x))
    graph = graph.build()
    merged = coalesce(Singles(graph.everything).candidates(graph, SPEC))
    assert [candidate.inside for candidate in merged] == [0b111]


def test_d03_coalescing_keeps_the_quotient_acyclic():
    """a1 -> a2 and b1 -> b2 with a1 -> b2 and b1 -> a2: both pairs merged would wait for another."""
    graph = GraphBuilder()
    a1 = graph.add("Relu", graph.input("x"))
    b1 = graph.add("Relu", graph.input("y"))
    graph.returns(graph.add("Add", a1, b1), graph.add("Add", b1, a1))
    graph = graph.build()
    assert quotient_order(graph, [0b0101, 0b1010]) is None
    merged = coalesce(_spread(graph, [0, 2], [1, 3]))
    assert len(merged) == 3
    assert quotient_order(graph, [candidate.inside for candidate in merged]) is not None


def test_d03_coalescing_checks_validity():
    graph = chain("Relu", "Relu", "Relu")
    singles = Singles(graph.everything).candidates(graph, SPEC)
    merged = coalesce(singles, SubGraphConfig(max_depth=2))
    assert [candidate.inside for candidate in merged] == [0b11, 0b100]


def test_d04_no_candidate_of_a_best_plan_is_pruned():
    """Of every region, all connected parts stay candidates: the optimum is that of brute force."""
    graph = chain(*["Relu"] * 5)
    rules = {"a": Regions(graph.everything), "b": Regions(graph.everything)}
    candidates = [candidate for candidate in list_candidates(graph, rules) if not candidate.is_host]
    for seed in range(50):
        draw = random.Random(seed)
        costs = {
            candidate.key: Cost(draw.uniform(0.1, 1) * candidate.sub_graph.size)
            for candidate in candidates
        }
        _, total = search(candidates, costs)
        best = [0.0] + [math.inf] * len(graph)
        for end in range(1, len(graph) + 1):
            for candidate in candidates:
                if candidate.inside.bit_length() == end:
                    start = end - candidate.sub_graph.size
                    best[end] = min(best[end], best[start] + costs[candidate.key].seconds)
        assert total == pytest.approx(best[-1])


def test_d05_costs_of_two_targets_do_not_share_a_key():
    four_cores = Environment("cpu", "avx2", 4, 4, "", "1")
    eight_cores = Environment("cpu", "avx2", 4, 8, "", "1")
    keys = {
        cost_key("region", "tvm llvm", four_cores),
        cost_key("region", "tvm cuda", four_cores),
        cost_key("region", "tvm llvm", eight_cores),
        cost_key("other", "tvm llvm", four_cores),
    }
    assert len(keys) == 4


def test_d06_equality_compares_spec_and_nested_attributes():
    """Two native targets on equal nodes are two candidates, and both reach the search."""
    graph = chain("Relu")
    relu = DFPattern("relu", op("Relu"))
    specs = [PartitionSpec("tvm-llvm"), PartitionSpec("tvm-cuda"), PartitionSpec("tvm-llvm", "v")]
    candidates = [candidate for spec in specs for candidate in relu.candidates(graph, spec)]
    candidates += Composite("one", relu).candidates(graph, specs[0])
    candidates += Composite("two", relu).candidates(graph, specs[0])
    assert len({candidate.key for candidate in candidates}) == len(set(candidates)) == 5
    chosen, _ = search(
        candidates,
        {candidate.key: Cost(1.0 + rank) for rank, candidate in enumerate(reversed(candidates))},
    )
    assert chosen[0].sub_graph.nested[0].attrs == (("Composite", "two"),)


def test_d06_two_native_backends_both_have_candidates():
    native = [FakeBackend(name, BackendStyle.NATIVE) for name in ("tvm-llvm", "tvm-cuda")]
    candidates = find_candidates(Graph(chain("Conv", "Relu")), native)
    offers = {
        backend.name: [
            candidate.inside for candidate in candidates if candidate.backend == backend.name
        ]
        for backend in native
    }
    assert offers["tvm-llvm"] == offers["tvm-cuda"] == [0b1, 0b11, 0b10]


class _KernelBuilder:
    """Prepares a given kernel with one output element and the expected value 1."""

    def __init__(self, kernel):
        self._kernel = kernel

    def dispatch_overhead_s(self):
        return 0.0

    def prepare(self, work):
        output = np.zeros(1, np.float32)
        return Prepared(self._kernel, (output,), (), (output,), (np.ones(1, np.float32),))


_TIMER = Timer(1 << 10, lambda *_: None)


def _crash(output):
    raise RuntimeError("the driver is gone")


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [(_crash, "the driver is gone"), (lambda output: None, "wrong numbers in output 0")],
)
def test_d07_a_failing_kernel_is_invalid_with_its_reason(kernel, reason):
    """A failure at run time and wrong numbers count, not only a failure of the compiler."""
    worker = Worker(io.BytesIO(), io.BytesIO())
    outcome = worker._outcome(
        _KernelBuilder(kernel), _TIMER, Task(MeasurementRequest("main", 1, "a"), 1.0, 0.0)
    )
    assert outcome.cost.is_invalid
    assert reason in outcome.cost.reason


def test_d07_integer_inputs_are_not_all_zero_and_in_range(tmp_path):
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, [64])
    rows = helper.make_tensor_value_info("rows", TensorProto.FLOAT, [64, 4])
    table = numpy_helper.from_array(np.ones((40, 4), np.float32), "table")
    nodes = [helper.make_node("Gather", ["table", "ids"], ["rows"])]
    graph = helper.make_graph(nodes, "embedding", [ids], [rows], [table])
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), tmp_path / "m.onnx")
    function = import_model(tmp_path / "m.onnx", work_dir=tmp_path / "work").functions[0]
    drawn = random_inputs(function, seed=0)["ids"]
    assert drawn.dtype == np.int64
    assert len(set(drawn.tolist())) > 5
    assert drawn.min() >= 0
    assert drawn.max() < 40


def test_d08_unknown_costs_are_left_out_and_priority_breaks_ties():
    graph = chain("Relu", "Relu")
    candidates = list_candidates(graph, {backend: Singles(graph.everything) for backend in "abc"})
    costs = {
        candidate.key: Cost.unknown() if candidate.backend == "a" else Cost(1.0)
        for candidate in candidates
    }
    for ranks, winner in (({"b": 1, "c": 2}, "b"), ({"b": 2, "c": 1}, "c")):
        chosen, total = search(candidates, costs, ranks)
        assert [candidate.backend for candidate in chosen] == [winner, winner]
        assert total == 2.0


def test_d09_invalid_candidates_are_never_chosen():
    """Without an alternative, the failure names the node and the reason."""
    graph = chain("Relu", "Tanh")
    candidates = list_candidates(graph, {"a": Singles(graph.everything)})
    costs = {candidate.key: Cost(1.0) for candidate in candidates}
    costs[candidates[1].key] = Cost.invalid("it crashed")
    with pytest.raises(SearchError, match=r"(?s)node 1 .*Tanh.*it crashed"):
        search(candidates, costs)


def test_d10_a_boundary_costs():
    """Equal kernels: without a boundary cost two calls tie with one, with it one call wins."""
    graph = chain("Relu", "Relu")
    options = [Option(nodes, f"{nodes}", "a") for nodes in (0b01, 0b10, 0b11)]
    costs = {"1": Cost(1.0), "2": Cost(1.0), "3": Cost(2.1)}
    free = find_plan(Problem(graph, options), costs)
    paid = find_plan(Problem(graph, options, {"a": 0.2}), costs)
    assert [option.nodes for option in free.options] == [0b01, 0b10]
    assert [option.nodes for option in paid.options] == [0b11]
    assert paid.predicted_s == pytest.approx(2.3)


def test_d11_a_dead_end_does_not_end_the_search():
    """{0, 1} is cheapest, but nothing covers node 2 after it."""
    graph = chain("Relu", "Relu", "Relu")
    options = [Option(nodes, f"{nodes:b}", "a") for nodes in (0b1, 0b11, 0b110)]
    costs = {"1": Cost(5.0), "11": Cost(0.1), "110": Cost(5.0)}
    plan = find_plan(Problem(graph, options), costs)
    assert [option.nodes for option in plan.options] == [0b1, 0b110]


def test_d12_nested_overlaps_are_invalid():
    graph = chain("Relu", "Relu", "Relu")
    first_pair = SubGraph(graph, 0b011).with_attrs(Composite="one")
    last_pair = SubGraph(graph, 0b110).with_attrs(Composite="two")
    overlapping = SubGraph(graph, 0b111, (*first_pair.nested, *last_pair.nested))
    assert overlapping.validity(SubGraphConfig()) == "nested sub-graphs overlap"


def test_d12_projections_check_the_kind():
    builder = GraphBuilder()
    heavy = builder.add("Conv", builder.input("x"))
    builder.add("tuple_get_item", heavy)
    graph = builder.build()
    rule = Combine(OpCallByKind(), (TupleProj(),))
    assert [candidate.inside for candidate in rule.candidates(graph, SPEC)] == [0b1]


def test_d13_options_have_defaults_and_results_persist(tmp_path):
    """Depth, style and budget have defaults; costs persist beyond the measuring process."""
    assert Options().backends is None
    graph = chain(*["Conv", "Relu"] * 20)
    assert 0 < len(Regions(graph.everything).candidates(graph, SPEC)) < 2000
    LocalCostTable(tmp_path).put("key", Cost(1.5, 1.0, 2.0))
    assert LocalCostTable(tmp_path).get("key").seconds == 1.5


def test_d14_the_depth_of_a_union_is_not_the_sum():
    """p -> q beside p -> r -> s: {p, q} and {r, s} are both two deep, and their union three."""
    graph = GraphBuilder()
    p = graph.add("Relu", graph.input("x"))
    graph.returns(
        graph.add("Relu", p), graph.add("Relu", graph.add("Relu", p)), graph.add("LSTM", p)
    )
    graph = graph.build()
    sides = Union((_Given(index_set([0, 1])), _Given(index_set([2, 3]))))
    rule = Combine(sides, (AllSimple(((Kind.ELEMWISE, Kind.ELEMWISE),)),), max_depth=3)
    assert index_set([0, 1, 2, 3]) in {
        candidate.inside for candidate in rule.candidates(graph, SPEC)
    }


class _Given(Singles):
    """One candidate of all nodes."""

    def candidates(self, graph, spec):
        return [Candidate(SubGraph(graph, self.nodes), spec)]


def test_d15_equal_nodes_do_not_remove_each_other():
    """Two labels on the same nodes both stay; the same candidate twice stays once."""
    graph = chain("Relu")
    table = [Composite(name, DFPattern(name, op("Relu"))) for name in ("one", "two")]
    candidates = Union((*table, *table)).candidates(graph, SPEC)
    assert [candidate.label for candidate in candidates] == ["one", "two"]
    assert [list(indices(candidate.inside)) for candidate in candidates] == [[0], [0]]
    assert search(candidates, {candidate.key: Cost(1.0) for candidate in candidates})[1] == 1.0


def test_the_combiner_limit_never_drops_the_sub_rule():
    graph = chain(*["Relu"] * 10)
    rule = Combine(OpCallByKind(), (AllSimple(FUSE_OPS_KINDS),), max_candidates_per_node=1)
    regions = [candidate.inside for candidate in rule.candidates(graph, SPEC)]
    assert regions[:10] == [1 << index for index in range(10)]
    assert len(regions) == 19
    assert len(tvm_rule(3).candidates(graph, SPEC)) == 27
