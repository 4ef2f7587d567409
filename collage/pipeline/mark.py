"""The mark of a finished search: what the next run of the same compile starts from.

A search under a time budget could go on a little in every run. What is finished stays so, until the
function, a backend, the candidates that its rule lists, the environment or the budget changes: all
of these are in the mark's name. Its content is what the table of costs does not hold: how much a
better plan could still save, the best plan that was measured whole, what kernels took inside it and
other plans, and how long kernels were tuned for better ones. A mark that is damaged or
names what is no longer there counts as absent.
"""

import hashlib
import json
import math
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from collage.errors import StoreError
from collage.frontend.region import region_digest
from collage.pipeline.session import Session
from collage.search.function import Enumerated, FunctionSearch
from collage.search.in_place import Sighting
from collage.search.launches import predicted_s
from collage.search.problem import Option, Plan
from collage.search.worth import NamedPlan
from collage.store.base import Store
from collage.verify.latency import Latency

ATTEMPTS = 10
"""Of writing a shared mark; whoever is overtaken that often leaves the others' mark as it is."""

KNOWN_PLANS = 1
"""Plans that the next run assembles and compares again, besides the best one of one toolchain."""


@dataclass(frozen=True)
class SearchMark:
    """Where the mark of one search lies: a local file and, where costs are shared, an object too."""

    path: Path
    store: Store | None = None

    @classmethod
    def of(cls, enumerated: Enumerated, session: Session) -> "SearchMark":
        """Name the mark of a search."""
        function = enumerated.function
        facts = [
            region_digest(function, function.graph.everything),
            *(backend.identity for backend in session.backends),
            *sorted(map(str, enumerated.work)),
            session.environment.digest,
            str(float(session.options.measure_budget_s)),
            *(
                f"{one} without {sorted(others)}"
                for one, others in enumerated.problem.conflicts.items()
            ),
        ]
        if session.options.may_reduce:
            facts.append(f"tolerance={session.options.tolerance}")
        name = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
        return cls(session.options.store_dir / "searches" / name, session.store)

    def gap_s(self) -> float | None:
        """Return how much a better plan could save, None when the search has not ended yet."""
        try:
            return float(self._read()["gap_s"])
        except (ValueError, KeyError, TypeError):
            return None

    def tuned_s(self) -> float:
        """Return the time for tuning that was spent to its end, 0 when there was none."""
        try:
            return float(self._read()["tuned_s"])
        except (ValueError, KeyError, TypeError):
            return 0.0

    def plans(self, search: FunctionSearch) -> Sequence[NamedPlan]:
        """Return the remembered plans, predicted with the costs of now; maybe none."""
        known = {_option_key(option): option for option in search.enumerated.problem.ordered}
        try:
            return [_read(entry, known, search) for entry in self._read()["plans"]]
        except (ValueError, KeyError, TypeError):
            return ()

    def in_place(self, search: FunctionSearch) -> Sequence[Sighting]:
        """Return what was seen of the kernels in place when the remembered plans were compared."""
        known = {json.dumps(key): key for key in search.costs}
        try:
            return [
                Sighting(known[json.dumps(key)], float(alone_s), float(in_place_s))
                for key, alone_s, in_place_s in self._read()["in_place"]
            ]
        except (ValueError, KeyError, TypeError):
            return ()

    def write(
        self,
        gap_s: float,
        plans: Sequence[NamedPlan] = (),
        tuned_s: float | None = None,
        in_place: Sequence[Sighting] = (),
    ) -> None:
        """Say that the search has ended, and tuning with that budget (None: no more than before).

        Raises:
            StoreError: the store cannot be written.
        """
        tuned_s = max(tuned_s or 0.0, self.tuned_s())
        listed = [_written(plan) for plan in plans]
        seen = [(one.key, one.alone_s, one.in_place_s) for one in in_place]
        facts = {"gap_s": gap_s, "plans": listed, "tuned_s": tuned_s, "in_place": seen}
        text = json.dumps(facts)
        partial = self.path.with_suffix(f".{os.getpid()}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(text)
            partial.replace(self.path)
        except OSError as error:
            reason = f"the store cannot be written: {error.strerror}: {self.path}"
            raise StoreError(reason) from error
        if self.store is not None:
            self._share(self.store, text)

    def _read(self) -> Any:
        """Return the content: what machines share before what this one keeps."""
        shared = self.store.read(self._key) if self.store is not None else None
        try:
            return json.loads(self.path.read_bytes() if shared is None else shared.data)
        except OSError:
            return None

    def _share(self, store: Store, text: str) -> None:
        content = json.dumps({**json.loads(text), "token": uuid4().hex}).encode()
        for _ in range(ATTEMPTS):
            found = store.read(self._key)
            if store.swap(self._key, content, found.version if found else None):
                return

    @property
    def _key(self) -> str:
        return f"searches/{self.path.name}.json"


def worth_remembering(
    plans: Mapping[str, NamedPlan],
    latencies: Mapping[str, Latency],
    finalists: Collection[str] = (),
) -> list[NamedPlan]:
    """Return the plan that measured fastest whole, the fastest of one toolchain, and in float32.

    Args:
        plans: by name.
        latencies: of plans that were measured whole, by name.
        finalists: those that were compared last and with each other; they come before all others,
            whose latencies are of other moments.
    """
    measured = [name for name in plans if name in latencies]
    order = sorted(
        (name for name in measured if math.isfinite(latencies[name].seconds)),
        key=lambda name: (name not in finalists, latencies[name].seconds),
    )
    best = [*order[:KNOWN_PLANS], *[name for name in order if plans[name].single][:1]]
    if any(plans[name].plan.reduced for name in best):
        best += [name for name in order if not plans[name].plan.reduced][:1]
    return [plans[name] for name in dict.fromkeys(best)]


def _written(plan: NamedPlan) -> dict[str, object]:
    options = [json.loads(_option_key(option)) for option in plan.plan.options]
    return {"name": plan.name, "single": plan.single, "options": options}


def _read(
    entry: Mapping[str, object], known: Mapping[str, Option], search: FunctionSearch
) -> NamedPlan:
    listed = entry["options"]
    if not isinstance(listed, list):
        raise TypeError("a plan is a list of options")
    options = tuple(known[json.dumps(option)] for option in listed)
    plan = Plan(options, 0.0)
    expected_s = predicted_s(search.enumerated.problem, search.costs, plan)
    return NamedPlan(
        str(entry["name"]), replace(plan, predicted_s=expected_s), str(entry["single"])
    )


def _option_key(option: Option) -> str:
    return json.dumps([hex(option.nodes), option.backend, option.key])
