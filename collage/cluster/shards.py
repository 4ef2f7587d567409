"""Shards of a batch: the work of one pod each, sized by its expected duration.

A pod costs ten seconds or more before its first measurement (scheduling, imports, the model, its
reference values); shards of unequal length leave nodes idle at the end. So a batch is cut into shards
of `seconds_per_shard`, and into more of them if nodes would be idle. The candidates of one region stay
together: they are compared on one machine in one process, and only a pod that knows the best of them can
give up a far slower one early. Regions go, longest first, to the lightest shard (LPT: at most 4/3 of the
best balance). The shards depend on the batch alone: two controllers with equal batches write equal
documents, whose digest names one Job. O(n log n).
"""

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict

from collage.cost import CostKey, Environment
from collage.graph.index_set import IndexSet
from collage.measure.measurement_request import MeasurementRequest

BUILD_S: Mapping[str, float] = {
    "onnxruntime": 0.6,
    "openvino": 0.9,
    "onednn": 0.5,
    "winograd": 0.6,
    "tvm": 4.0,
    "tvm-cuda": 4.0,
    "cutlass": 25.0,
    "cublas": 0.1,
    "cudnn": 0.1,
    "tensorrt": 0.2,
    "onnxruntime-cuda": 0.2,
    "onnxruntime-host": 0.6,
}
"""Prior duration of one build by backend, in seconds, as measured on two cores."""

LOADING_S: Mapping[str, float] = {"tensorrt": 20.0, "onnxruntime-cuda": 2.0}
"""Duration from a kernel's file to its first result, in seconds, of backends that build an engine then."""

OTHER_BUILD_S = 3.0
OTHER_LOADING_S = 0.4
TIMING_S = 0.8

WORTH_A_POD_S = 30.0
"""Shortest useful shard, in seconds: start-up dominates a shorter one."""

Purpose = Literal["measure", "build"]


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ShardRequest(_Document):
    """Wire form of a measurement request with its cost key; `nodes` is a hexadecimal index set."""

    nodes: str
    backend: str
    variant: str
    label: str
    key: str

    def work(self, function: str) -> MeasurementRequest:
        return MeasurementRequest(
            function, IndexSet(int(self.nodes, 16)), self.backend, self.variant, label=self.label
        )


class Batch(_Document):
    """The work of one Indexed Job: a blob in the store.

    Attributes:
        purpose: "measure", or "build" to leave kernels in the store (`collage.cluster.kernel_records`).
        fetches: True if kernels come from the store; False if the measuring pod builds them.
        request: digest of the compile request, which names the model.
        function: name of the function of all candidates.
        caller: name of the model's function with the body that `function` names; "" where that is no body.
        environment: required environment of every pod.
        backends: required identity of each backend, by name.
        shards: requests of each completion index.
    """

    schema_version: Literal[4] = 4
    purpose: Purpose = "measure"
    fetches: bool = False
    request: str
    function: str
    caller: str = ""
    environment: Environment
    backends: Mapping[str, str]
    shards: tuple[tuple[ShardRequest, ...], ...]


@dataclass(frozen=True, slots=True)
class KeyedRequest:
    """A measurement request and its cost key: one candidate to build or to measure."""

    key: CostKey
    work: MeasurementRequest


class DurationEstimate:
    """Expected duration of building and timing a candidate, learnt from known costs."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, int]] = {}

    def learn(self, backend: str, build_s: float) -> None:
        total, count = self._sums.get(backend, (0.0, 0))
        self._sums[backend] = (total + build_s, count + 1)

    def seconds(self, backend: str) -> float:
        total, count = self._sums.get(backend, (0.0, 0))
        prior = BUILD_S.get(backend, OTHER_BUILD_S)
        return (total + prior) / (count + 1) + TIMING_S


def loading_s(backend: str) -> float:
    """Return the expected duration of loading and timing a built kernel, in seconds."""
    return LOADING_S.get(backend, OTHER_LOADING_S) + TIMING_S


def plan_shards(
    candidates: Sequence[KeyedRequest],
    seconds: Callable[[str], float],
    *,
    seconds_per_shard: float,
    parallelism: int,
) -> list[list[KeyedRequest]]:
    """Cut candidates into shards of about equal duration.

    Args:
        candidates: one request or more; no key twice.
        seconds: expected duration of one candidate, in seconds, by the backend's name.
        seconds_per_shard: limit of one shard, in seconds; a single candidate may exceed it.
        parallelism: largest number of simultaneous pods.
    """
    regions: dict[IndexSet, list[KeyedRequest]] = {}
    for candidate in sorted(candidates, key=lambda candidate: (candidate.work, candidate.key)):
        regions.setdefault(candidate.work.nodes, []).append(candidate)
    pieces = [
        (sum(seconds(candidate.work.backend) for candidate in part), part)
        for region in regions.values()
        for part in _parts(region, seconds, seconds_per_shard)
    ]
    total_s = sum(expected_s for expected_s, _ in pieces)
    count = max(
        math.ceil(total_s / seconds_per_shard),
        min(parallelism, math.ceil(total_s / min(WORTH_A_POD_S, seconds_per_shard))),
    )
    return _balanced(pieces, min(count, len(pieces)))


def _parts(
    region: list[KeyedRequest], seconds: Callable[[str], float], limit_s: float
) -> list[list[KeyedRequest]]:
    """Cut a region into parts of at most `limit_s`; most regions are one part."""
    parts: list[list[KeyedRequest]] = [[]]
    filled_s = 0.0
    for candidate in region:
        expected_s = seconds(candidate.work.backend)
        if parts[-1] and filled_s + expected_s > limit_s:
            parts.append([])
            filled_s = 0.0
        parts[-1].append(candidate)
        filled_s += expected_s
    return parts


def _balanced(
    pieces: list[tuple[float, list[KeyedRequest]]], count: int
) -> list[list[KeyedRequest]]:
    shards: list[list[KeyedRequest]] = [[] for _ in range(count)]
    lightest = [(0.0, number) for number in range(count)]
    for expected_s, part in sorted(pieces, key=lambda unit: -unit[0]):  # stable: ties by region
        filled_s, number = lightest[0]
        shards[number] += part
        heapq.heapreplace(lightest, (filled_s + expected_s, number))
    return shards


def write_batch(
    shards: Sequence[Sequence[KeyedRequest]],
    *,
    request: str,
    function: str,
    caller: str = "",
    environment: Environment,
    backends: Mapping[str, str],
    purpose: Purpose = "measure",
    fetches: bool = False,
) -> bytes:
    """Return the canonical JSON of a batch; the parameters are the fields of `Batch`."""
    used = {candidate.work.backend for shard in shards for candidate in shard}
    batch = Batch(
        purpose=purpose,
        fetches=fetches,
        request=request,
        function=function,
        caller=caller,
        environment=environment,
        backends={name: backends[name] for name in sorted(used)},
        shards=tuple(tuple(map(_written, shard)) for shard in shards),
    )
    return batch.model_dump_json().encode()


def _written(candidate: KeyedRequest) -> ShardRequest:
    work = candidate.work
    return ShardRequest(
        nodes=hex(work.nodes),
        backend=work.backend,
        variant=work.variant,
        label=work.label,
        key=candidate.key,
    )
