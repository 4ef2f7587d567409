"""Import of an untrusted model in a child process with limits.

The child reads, expands, folds and infers the model. It returns files of simplified functions and a few
facts (`frontend.limited_process`); this process finds the operator kinds.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from collage.errors import ModelError
from collage.frontend.bodies import BodyFile
from collage.frontend.importer import (
    ShapeSet,
    Simplified,
    finish_import,
    simplified_file,
    simplify_model,
)
from collage.frontend.limited_process import Allowance, Question, answer_limited, ask_limited, gib
from collage.frontend.model import Function, Model
from collage.frontend.model_files import open_model
from collage.import_limits import MEMORY, SECONDS_PER_GIB, import_limits
from collage.runtime.function_names import MAIN, function_names

_CGROUP = Path("/sys/fs/cgroup/memory.max")
_VALUE_COPIES = 3
"""Copies of values during a run: while computing, as results, and of the original model's run."""


def guarded_import(
    path: Path,
    *,
    dims: Mapping[str, int] = {},
    shapes: Sequence[ShapeSet] = (),
    work_dir: Path,
    keep_half: bool = False,
    entry: str = MAIN,
    optional_dims: Collection[str] = (),
    taken_defaults: Collection[str] = (),
) -> Model:
    """Import a model within the limits of `collage.import_limits`; arguments as `import_model`.

    Raises:
        ModelError: the file cannot be used, or takes more than the limits allow.
        DimensionError: a dimension is unbound, unknown or contradictory.
        OptionError: a limit in the environment makes no sense.
    """
    path = Path(path)
    work_dir.mkdir(parents=True, exist_ok=True)
    question = {
        "path": os.path.abspath(path),
        "dims": dict(dims),
        "shapes": [
            {name: list(shape) for name, shape in shape_set.items()} for shape_set in shapes
        ],
        "work_dir": str(work_dir.resolve()),
        "keep_half": keep_half,
        "entry": entry,
        "optional_dims": sorted(optional_dims),
        "taken_defaults": sorted(taken_defaults),
    }
    answer = ask_limited(__name__, question, file_allowance(path), path, folder=work_dir)
    names = function_names(len(shapes), entry)
    return finish_import(path, _simplified(path, answer, names, work_dir), entry)


def run_allowance(path: Path, function: Function) -> Allowance:
    """Return the limits of one run of a function with all values as outputs.

    Raises:
        ModelError: values with static shapes need more than their share of this machine's memory.
    """
    graph = function.graph
    needed = sum(
        graph.types[value].size_bytes
        for value in (*graph.inputs, *(name for node in graph.nodes for name in node.outputs))
        if value in graph.types
    )
    available_bytes = max(_memory_bytes() // _VALUE_COPIES, import_limits().memory_bytes)
    if needed > available_bytes:
        raise ModelError(
            f"{path}: the values of one run of {function.name} take {gib(needed)}, more than the"
            f" {gib(available_bytes)} that this machine has for them; bind smaller shapes, or set {MEMORY}"
            " higher if you trust the model"
        )
    return _allowance(path, needed)


def file_allowance(path: Path) -> Allowance:
    """Return the limits of a child that reads the model, by the size of its files."""
    return _allowance(path, 0)


def _allowance(path: Path, value_bytes: int) -> Allowance:
    with open_model(path) as files:
        size_bytes = files.size_bytes
    limits = import_limits()
    return Allowance(
        limits.memory_of(size_bytes) + _VALUE_COPIES * value_bytes,
        limits.cpu_of(size_bytes) + SECONDS_PER_GIB * value_bytes / (1 << 30),
    )


def _answer(question: Question) -> Mapping[str, object]:
    """Simplify the model, in the child."""
    shapes = [
        {name: tuple(shape) for name, shape in shape_set.items()}
        for shape_set in question["shapes"]
    ]
    simplified = simplify_model(
        Path(question["path"]),
        dims=question["dims"],
        shapes=shapes,
        work_dir=Path(question["work_dir"]),
        keep_half=question["keep_half"],
        entry=question["entry"],
        optional_dims=question["optional_dims"],
        taken_defaults=question["taken_defaults"],
    )
    return {
        "sha256": simplified.sha256,
        "float_types": sorted(simplified.float_types),
        "functions": len(simplified.functions),
        "notes": list(simplified.notes),
        "bodies": [
            {
                "caller": body.caller,
                "node": body.node,
                "attribute": body.attribute,
                "is_function": body.file is not None,
                "results": list(body.results),
                "refusal": body.refusal,
            }
            for body in simplified.bodies
        ],
        "absent_dims": sorted(simplified.absent_dims),
    }


def _simplified(
    path: Path, answer: Mapping[str, Any], names: Sequence[str], work_dir: Path
) -> Simplified:
    if answer["functions"] != len(names):
        raise ModelError(
            f"{path}: {len(names)} functions were to be read, not {answer['functions']}"
        )
    return Simplified(
        str(answer["sha256"]),
        frozenset(map(str, answer["float_types"])),
        tuple((name, simplified_file(work_dir, name)) for name in names),
        tuple(map(str, answer["notes"])),
        bodies=tuple(_body_file(entry, work_dir) for entry in answer["bodies"]),
        absent_dims=frozenset(map(str, answer["absent_dims"])),
    )


def _body_file(entry: Mapping[str, Any], work_dir: Path) -> BodyFile:
    """Return a body of the child's answer; its file's name follows from the body's place."""
    body = BodyFile(
        str(entry["caller"]),
        int(entry["node"]),
        str(entry["attribute"]),
        None,
        results=tuple(map(str, entry["results"])),
        refusal=str(entry["refusal"]),
    )
    if not entry["is_function"]:
        return body
    if not body.name.isidentifier():
        raise ModelError(f"a body of the model has the invalid name {body.name!r}")
    return replace(body, file=simplified_file(work_dir, body.name))


def _memory_bytes() -> int:
    """Return the memory of this machine or of the container, in bytes."""
    physical_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        allowed = _CGROUP.read_text().strip()
    except OSError:  # this machine has no control groups of version 2
        return physical_bytes
    return min(physical_bytes, int(allowed)) if allowed.isdecimal() else physical_bytes


if __name__ == "__main__":
    answer_limited(_answer)
