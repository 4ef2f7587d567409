"""The checkpoint of a finished search: the starting point of the next run of the same compile.

A search under a time budget could continue a little in every run. A finished search stays finished until
the function, a backend, the candidates of its rule, the environment or the budget changes: the name of the
checkpoint is a digest of all these. The content complements the cost table: the possible gain of a better
plan, the best plans of the last comparison, in-context samples of their kernels, and the time spent on
tuning. A damaged checkpoint counts as absent; so do plans and samples of candidates that no longer exist.

    searches/<digest>          local file: {"gap_s", "plans", "tuned_s", "in_place"}
    searches/<digest>.json     the same in a shared store, with a "token"      swap
"""

import hashlib
import json
import logging
import math
import os
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

from collage.cost.cost import LONGEST_S
from collage.errors import StoreError
from collage.frontend.region import region_digest
from collage.pipeline.compile_context import CompileContext
from collage.search.enumeration import EnumeratedFunction
from collage.search.function_search import FunctionSearch
from collage.search.graph_launches import predicted_s
from collage.search.in_context import InContextSample
from collage.search.plan_selection import NamedPlan
from collage.search.problem import Option, Plan
from collage.store.atomic_folder import flush_folder, make_folders, write_durably
from collage.store.base import Store
from collage.store.records import Fields, RecordError, parse_object, report_damage
from collage.verify.interleaved_benchmark import Latency

log = logging.getLogger(__name__)

ATTEMPTS = 10
"""Attempts to write a shared checkpoint; after as many lost races the other writer's stays."""
REMEMBERED_PLANS = 1
"""Fastest plans that the next run assembles and compares again, besides the best of one toolchain."""


@dataclass(frozen=True)
class _StoredPlan:
    """A plan whose options are JSON texts: region, backend and cost key."""

    name: str
    single: str
    options: tuple[str, ...]


@dataclass(frozen=True)
class _StoredSample:
    """An in-context sample whose cost key is a JSON text."""

    key: str
    isolated_s: float
    in_context_s: float


@dataclass(frozen=True)
class SearchCheckpoint:
    """Content of a checkpoint, independent of the candidates of today.

    Attributes:
        gap_s: upper bound of the gain of a better plan, in seconds; None: the search has not ended.
        tuned_s: tuning budget that was spent to its end, in seconds; default 0.
        stored_plans: remembered plans, the fastest first.
        stored_samples: in-context samples from the last comparison.
    """

    gap_s: float | None = None
    tuned_s: float = 0.0
    stored_plans: tuple[_StoredPlan, ...] = ()
    stored_samples: tuple[_StoredSample, ...] = ()

    @classmethod
    def of(
        cls,
        gap_s: float,
        *,
        plans: Sequence[NamedPlan] = (),
        samples: Sequence[InContextSample] = (),
        tuned_s: float = 0.0,
    ) -> "SearchCheckpoint":
        """Make the checkpoint of a search that has ended."""
        return cls(
            gap_s,
            tuned_s,
            tuple(
                _StoredPlan(plan.name, plan.single, tuple(map(_option_key, plan.plan.options)))
                for plan in plans
            ),
            tuple(
                _StoredSample(json.dumps(sample.key), sample.isolated_s, sample.in_context_s)
                for sample in samples
            ),
        )

    @classmethod
    def parse(cls, text: bytes) -> "SearchCheckpoint":
        """Read the stored form. Raises RecordError where it is damaged."""
        fields = Fields(parse_object(text, infinities=True))
        return cls(
            fields.number("gap_s"),
            fields.number("tuned_s", maximum=LONGEST_S),
            tuple(_stored_plan(entry) for entry in fields.items("plans")),
            tuple(_stored_sample(entry) for entry in fields.items("in_place")),
        )

    def to_fields(self) -> dict[str, object]:
        """Return the stored form, ready for JSON."""
        return {
            "gap_s": self.gap_s,
            "plans": [
                {"name": plan.name, "single": plan.single, "options": _loaded(plan.options)}
                for plan in self.stored_plans
            ],
            "tuned_s": self.tuned_s,
            "in_place": [
                (json.loads(sample.key), sample.isolated_s, sample.in_context_s)
                for sample in self.stored_samples
            ],
        }

    def plans(self, search: FunctionSearch) -> tuple[NamedPlan, ...]:
        """Return the remembered plans, predicted with the costs of `search`.

        The result is empty where a plan names a candidate that no longer exists.
        """
        problem, costs = search.enumerated.problem, search.costs
        candidates = {_option_key(option): option for option in problem.ordered}
        plans = []
        for stored in self.stored_plans:
            if not candidates.keys() >= set(stored.options):
                return ()
            plan = Plan(tuple(candidates[key] for key in stored.options), 0.0)
            plan = replace(plan, predicted_s=predicted_s(problem, costs, plan))
            plans.append(NamedPlan(stored.name, plan, stored.single))
        return tuple(plans)

    def samples(self, search: FunctionSearch) -> tuple[InContextSample, ...]:
        """Return the in-context samples; empty where one is of a candidate that no longer exists."""
        keys: dict[str, Hashable] = {json.dumps(key): key for key in search.costs}
        if not keys.keys() >= {sample.key for sample in self.stored_samples}:
            return ()
        return tuple(
            InContextSample(keys[sample.key], sample.isolated_s, sample.in_context_s)
            for sample in self.stored_samples
        )


@dataclass(frozen=True)
class CheckpointFile:
    """Location of one search's checkpoint: a local file and, where costs are shared, an object too."""

    path: Path
    store: Store | None = None

    @classmethod
    def of(cls, enumerated: EnumeratedFunction, context: CompileContext) -> "CheckpointFile":
        """Name the checkpoint of a search."""
        function = enumerated.function
        identity = [
            region_digest(function, function.graph.everything),
            *(backend.identity for backend in context.backends),
            *sorted(map(str, enumerated.work)),
            context.environment.digest,
            str(float(context.options.measure_budget_s)),
            *(
                f"{backend} without {sorted(conflicting)}"
                for backend, conflicting in enumerated.problem.conflicts.items()
            ),
        ]
        if context.options.may_reduce:
            identity.append(f"tolerance={context.options.tolerance}")
        name = hashlib.sha256(json.dumps(identity).encode()).hexdigest()
        return cls(context.options.store_dir / "searches" / name, context.store)

    def read(self) -> SearchCheckpoint:
        """Return the checkpoint: the shared one before the local one; an empty one where none is whole."""
        shared = self.store.read(self._key) if self.store is not None else None
        try:
            text = self.path.read_bytes() if shared is None else shared.data
        except FileNotFoundError:
            return SearchCheckpoint()
        except OSError as error:
            log.debug("the checkpoint of the search %s is not read: %s", self.path.name, error)
            return SearchCheckpoint()
        try:
            return SearchCheckpoint.parse(text)
        except RecordError as error:
            report_damage(f"the checkpoint of the search {self.path.name}", [str(error)])
            return SearchCheckpoint()

    def write(self, checkpoint: SearchCheckpoint) -> None:
        """Replace the checkpoint; the larger tuning time of the old and the new one stays.

        Raises:
            StoreError: the store cannot be written.
        """
        tuned_s = max(checkpoint.tuned_s, self.read().tuned_s)
        fields = replace(checkpoint, tuned_s=tuned_s).to_fields()
        partial = self.path.with_suffix(f".{os.getpid()}")
        try:
            make_folders(self.path.parent)
            write_durably(partial, json.dumps(fields).encode())
            partial.replace(self.path)
            flush_folder(self.path.parent)
        except OSError as error:
            reason = f"the store cannot be written: {error.strerror}: {self.path}"
            raise StoreError(reason) from error
        if self.store is not None:
            self._share(self.store, fields)

    def _share(self, store: Store, fields: Mapping[str, object]) -> None:
        content = json.dumps({**fields, "token": uuid4().hex}).encode()
        for _ in range(ATTEMPTS):
            stored = store.read(self._key)
            if store.swap(self._key, content, stored.version if stored else None):
                return

    @property
    def _key(self) -> str:
        return f"searches/{self.path.name}.json"


def select_remembered_plans(
    plans: Mapping[str, NamedPlan],
    latencies: Mapping[str, Latency],
    finalists: Collection[str] = (),
) -> list[NamedPlan]:
    """Return the fastest plan, the fastest of one toolchain, and where these are reduced one in float32.

    Args:
        plans: assembled plans by name.
        latencies: latencies of complete plans by name.
        finalists: names of the plans of the final round. They precede all others, since latencies of
            other rounds were measured at other times.
    """
    measured = [name for name in plans if name in latencies]
    order = sorted(
        (name for name in measured if math.isfinite(latencies[name].seconds)),
        key=lambda name: (name not in finalists, latencies[name].seconds),
    )
    best = [*order[:REMEMBERED_PLANS], *[name for name in order if plans[name].single][:1]]
    if any(plans[name].plan.reduced for name in best):
        best += [name for name in order if not plans[name].plan.reduced][:1]
    return [plans[name] for name in dict.fromkeys(best)]


def _stored_plan(entry: object) -> _StoredPlan:
    if not isinstance(entry, dict):
        raise RecordError("a plan is no object")
    fields = Fields(entry)
    options = tuple(_canonical(option) for option in fields.items("options"))
    return _StoredPlan(fields.text("name"), fields.text("single"), options)


def _stored_sample(entry: object) -> _StoredSample:
    if not isinstance(entry, list) or len(entry) != 3:
        raise RecordError("an in-context sample is not a key with two costs")
    costs = Fields({"isolated_s": entry[1], "in_context_s": entry[2]})
    return _StoredSample(
        _canonical(entry[0]),
        costs.number("isolated_s", maximum=LONGEST_S),
        costs.number("in_context_s", maximum=LONGEST_S),
    )


def _canonical(value: object) -> str:
    """Return the JSON text by which a candidate is found again."""
    try:
        return json.dumps(value)
    except RecursionError:
        raise RecordError("a key is nested too deeply") from None


def _loaded(texts: Sequence[str]) -> list[object]:
    return [json.loads(text) for text in texts]


def _option_key(option: Option) -> str:
    return json.dumps([hex(option.nodes), option.backend, option.key])
