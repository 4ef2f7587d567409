"""A batch of candidates as shards: what one pod measures, sized by what it is expected to take.

A pod costs ten seconds or more before its first measurement (scheduling, imports, the model, its
reference values), a shard that is too long leaves nodes idle at the end. So a batch is cut into shards
of `seconds_per_shard`, more of them where nodes would be idle. The candidates of one region stay
together: they are compared on one machine in one process's life, and a hopeless one is given up early
only by who knows the best. Regions go, longest first, to the shard that has least (LPT: at most 4/3 of
the best balance). All of it is a function of the batch alone, so two controllers that want the same
batch write the same document, and its digest names the same Job. O(n log n).
"""

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict

from collage.cost import CostKey, Environment
from collage.graph.index_set import IndexSet
from collage.measure.measurement_request import Work

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
"""Seconds that a build takes where no cost of that backend is known yet (measured on two cores)."""

LOADING_S: Mapping[str, float] = {"tensorrt": 20.0, "onnxruntime-cuda": 2.0}
"""Seconds from a kernel's file to its first right result, of those that make an engine of it then."""

OTHER_BUILD_S = 3.0
OTHER_LOADING_S = 0.4
TIMING_S = 0.8

WORTH_A_POD_S = 30.0
"""A shard shorter than this is all start-up."""

Purpose = Literal["measure", "build"]


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ShardWork(_Document):
    """One candidate and the key that its cost must have; `nodes` is a hexadecimal index set."""

    nodes: str
    backend: str
    variant: str
    key: str

    def work(self, function: str) -> Work:
        return Work(function, IndexSet(int(self.nodes, 16)), self.backend, self.variant)


class Batch(_Document):
    """What one Indexed Job works on: a blob in the store.

    Attributes:
        purpose: of the Job; one that builds leaves kernels in the store (`collage.cluster.kernel_records`).
        fetches: kernels come from there, as they are built; else who measures builds them.
        request: digest of the request, which names the model.
        function: all candidates are of it.
        environment: what every pod must find itself in.
        backends: the identity that each backend must have there.
        shards: one a completion index.
    """

    schema_version: Literal[3] = 3
    purpose: Purpose = "measure"
    fetches: bool = False
    request: str
    function: str
    environment: Environment
    backends: Mapping[str, str]
    shards: tuple[tuple[ShardWork, ...], ...]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A candidate to build or to measure."""

    key: CostKey
    work: Work


class Expectation:
    """What building and timing a candidate is expected to take, learnt from costs that are known."""

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
    """Return what loading a built kernel of the backend and timing it is expected to take."""
    return LOADING_S.get(backend, OTHER_LOADING_S) + TIMING_S


def plan_shards(
    wanted: Sequence[Wanted],
    seconds: Callable[[str], float],
    seconds_per_shard: float,
    parallelism: int,
) -> list[list[Wanted]]:
    """Cut candidates into shards that take about equally long.

    Args:
        wanted: at least one; no key twice.
        seconds: that a candidate of a backend is expected to take.
        seconds_per_shard: that a shard may take, unless one candidate takes longer.
        parallelism: pods at once.
    """
    regions: dict[IndexSet, list[Wanted]] = {}
    for one in sorted(wanted, key=lambda one: (one.work, one.key)):
        regions.setdefault(one.work.nodes, []).append(one)
    units = [
        (sum(seconds(one.work.backend) for one in part), part)
        for region in regions.values()
        for part in _parts(region, seconds, seconds_per_shard)
    ]
    total_s = sum(taken_s for taken_s, _ in units)
    count = max(
        math.ceil(total_s / seconds_per_shard),
        min(parallelism, math.ceil(total_s / min(WORTH_A_POD_S, seconds_per_shard))),
    )
    return _balanced(units, min(count, len(units)))


def _parts(
    region: list[Wanted], seconds: Callable[[str], float], limit_s: float
) -> list[list[Wanted]]:
    """Cut a region only where its candidates alone are more than a shard."""
    parts: list[list[Wanted]] = [[]]
    filled_s = 0.0
    for one in region:
        taken_s = seconds(one.work.backend)
        if parts[-1] and filled_s + taken_s > limit_s:
            parts.append([])
            filled_s = 0.0
        parts[-1].append(one)
        filled_s += taken_s
    return parts


def _balanced(units: list[tuple[float, list[Wanted]]], count: int) -> list[list[Wanted]]:
    shards: list[list[Wanted]] = [[] for _ in range(count)]
    least = [(0.0, number) for number in range(count)]
    for taken_s, part in sorted(units, key=lambda unit: -unit[0]):  # stable: ties by region
        filled_s, number = least[0]
        shards[number] += part
        heapq.heapreplace(least, (filled_s + taken_s, number))
    return shards


def write_batch(
    request: str,
    function: str,
    environment: Environment,
    backends: Mapping[str, str],
    shards: Sequence[Sequence[Wanted]],
    purpose: Purpose = "measure",
    fetches: bool = False,
) -> bytes:
    """Return the canonical text of a batch."""
    used = {one.work.backend for shard in shards for one in shard}
    batch = Batch(
        purpose=purpose,
        fetches=fetches,
        request=request,
        function=function,
        environment=environment,
        backends={name: backends[name] for name in sorted(used)},
        shards=tuple(tuple(map(_written, shard)) for shard in shards),
    )
    return batch.model_dump_json().encode()


def _written(one: Wanted) -> ShardWork:
    work = one.work
    return ShardWork(nodes=hex(work.nodes), backend=work.backend, variant=work.variant, key=one.key)
