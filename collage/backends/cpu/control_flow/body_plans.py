"""The plans of bodies, on disk: built executables for the nodes that call them.

The compile partitions each body before its caller, and writes one file for each control-flow node. Measuring
processes read it: they pack a node's kernel from the body's executable and need no compiler.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from collage.errors import BackendError


@dataclass(frozen=True)
class PlannedBody:
    """One body of a node.

    Attributes:
        name: name of its function, in the executable too.
        attribute: name of the node's attribute.
        simplified: path of its simplified file.
        results: results of `frontend.model.Body`.
    """

    name: str
    attribute: str
    simplified: str
    results: tuple[str, ...]


@dataclass(frozen=True)
class BodiesPlan:
    """One plan for all bodies of a node.

    Attributes:
        variant: name of the plan among those of the node; "" for the one that is predicted fastest.
        executables: path of each body's executable; "" for a body without operators.
        libraries: vendor libraries of the kernels.
        backends: names of the backends of the kernels.
        digest: digest of the regions with their backends' versions and variants.
    """

    variant: str
    executables: tuple[str, ...]
    libraries: tuple[str, ...]
    backends: tuple[str, ...]
    digest: str


@dataclass(frozen=True)
class NodePlans:
    """The bodies of one node with their plans, best first."""

    function: str
    node: int
    bodies: tuple[PlannedBody, ...]
    plans: tuple[BodiesPlan, ...]

    def plan(self, variant: str) -> BodiesPlan:
        """Return the plan of a variant. Raises BackendError where there is none."""
        for plan in self.plans:
            if plan.variant == variant:
                return plan
        raise BackendError(f"node {self.node} of {self.function} has no plan {variant!r}")


def write_plans(plans: NodePlans, folder: Path) -> None:
    """Write the plans of one node."""
    folder.mkdir(parents=True, exist_ok=True)
    _file(folder, plans.function, plans.node).write_text(json.dumps(asdict(plans)))


def read_plans(folder: Path | None, function: str, node: int) -> NodePlans | None:
    """Return the plans of a node; None for a node that stays whole."""
    file = None if folder is None else _file(folder, function, node)
    return _read(file) if file is not None and file.exists() else None


def function_plans(folder: Path | None, function: str) -> list[NodePlans]:
    """Return the plans of all nodes of a function, by node; none for a function without any."""
    files = [] if folder is None else folder.glob("*.json")
    plans = [node_plans for file in files if (node_plans := _read(file)).function == function]
    return sorted(plans, key=lambda node_plans: node_plans.node)


def _read(file: Path) -> NodePlans:
    document = json.loads(file.read_text())
    return NodePlans(
        document["function"],
        document["node"],
        tuple(
            PlannedBody(**{**body, "results": tuple(body["results"])})
            for body in document["bodies"]
        ),
        tuple(
            BodiesPlan(
                plan["variant"],
                tuple(plan["executables"]),
                libraries=tuple(plan["libraries"]),
                backends=tuple(plan["backends"]),
                digest=plan["digest"],
            )
            for plan in document["plans"]
        ),
    )


def _file(folder: Path, function: str, node: int) -> Path:
    return folder / f"{function}.{node}.json"
