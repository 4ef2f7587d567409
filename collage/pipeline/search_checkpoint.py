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
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from collage.cost.cost import LONGEST_S
from collage.errors import StoreError
from collage.frontend.region import region_digest
from collage.pipeline.compile_context import Session
from collage.search.enumeration import Enumerated
from collage.search.function_search import FunctionSearch
from collage.search.graph_launches import predicted_s
from collage.search.in_context import Sighting
from collage.search.plan_selection import NamedPlan
from collage.search.problem import Option, Plan
from collage.store.atomic_folder import flush_folder, make_folders, write_durably
from collage.store.base import Store
from collage.store.records import Fields, RecordError, parse_object, report_damage
from collage.verify.interleaved_benchmark import Latency

ATTEMPTS = 10
"""Of writing a shared mark; whoever is overtaken that often leaves the others' mark as it is."""

T = TypeVar("T")

KNOWN_PLANS = 1
"""Plans that the next run assembles and compares again, besides the best one of one toolchain."""


class _GoneError(RecordError):
    """The mark is whole and names a candidate that there is not any more."""


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
        return self._read(lambda content: content.number("gap_s"), None)

    def tuned_s(self) -> float:
        """Return the time for tuning that was spent to its end, 0 when there was none."""
        return self._read(lambda content: content.number("tuned_s", most=LONGEST_S), 0.0)

    def plans(self, search: FunctionSearch) -> Sequence[NamedPlan]:
        """Return the remembered plans, predicted with the costs of now; maybe none."""
        known = {_option_key(option): option for option in search.enumerated.problem.ordered}

        def read(content: Fields) -> Sequence[NamedPlan]:
            return [_read(entry, known, search) for entry in content.items("plans")]

        return self._read(read, ())

    def in_place(self, search: FunctionSearch) -> Sequence[Sighting]:
        """Return what was seen of the kernels in place when the remembered plans were compared."""
        known = {json.dumps(key): key for key in search.costs}

        def read(content: Fields) -> Sequence[Sighting]:
            return [_sighting(entry, known) for entry in content.items("in_place")]

        return self._read(read, ())

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
            make_folders(self.path.parent)
            write_durably(partial, text.encode())
            partial.replace(self.path)
            flush_folder(self.path.parent)
        except OSError as error:
            reason = f"the store cannot be written: {error.strerror}: {self.path}"
            raise StoreError(reason) from error
        if self.store is not None:
            self._share(self.store, text)

    def _read(self, use: Callable[[Fields], T], absent: T) -> T:
        """Use the content: what machines share before what this one keeps. `absent` where it is damaged."""
        shared = self.store.read(self._key) if self.store is not None else None
        try:
            data = self.path.read_bytes() if shared is None else shared.data
        except OSError:
            return absent
        try:
            return use(Fields(parse_object(data, infinities=True)))
        except _GoneError:
            return absent
        except RecordError as error:
            report_damage(f"the checkpoint of the search {self.path.name}", [str(error)])
            return absent

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


def _read(entry: object, known: Mapping[str, Option], search: FunctionSearch) -> NamedPlan:
    plan_fields = _object(entry)
    options = tuple(_known(option, known) for option in plan_fields.items("options"))
    plan = Plan(options, 0.0)
    expected_s = predicted_s(search.enumerated.problem, search.costs, plan)
    named = replace(plan, predicted_s=expected_s)
    return NamedPlan(plan_fields.text("name"), named, plan_fields.text("single"))


def _sighting(entry: object, known: Mapping[str, Hashable]) -> Sighting:
    if not isinstance(entry, list) or len(entry) != 3:
        raise RecordError("what was seen in place is not a key with two costs")
    seconds = Fields({"alone_s": entry[1], "in_place_s": entry[2]})
    return Sighting(
        _known(entry[0], known),
        seconds.number("alone_s", most=LONGEST_S),
        seconds.number("in_place_s", most=LONGEST_S),
    )


def _object(entry: object) -> Fields:
    if not isinstance(entry, dict):
        raise RecordError("a plan is no object")
    return Fields(entry)


def _known(value: object, known: Mapping[str, T]) -> T:
    """Return what a value of the record names. RecordError where it is not there any more."""
    try:
        return known[json.dumps(value)]
    except (KeyError, RecursionError):
        raise _GoneError("it names what is no longer there") from None


def _option_key(option: Option) -> str:
    return json.dumps([hex(option.nodes), option.backend, option.key])
