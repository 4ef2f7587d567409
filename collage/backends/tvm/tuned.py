"""Kernels whose schedule was searched for: a recorded trace, applied to the region's function.

A trace lists the steps of a schedule with every decision in it (tile sizes, unrolling, where a stage
is computed), so applying it searches nothing and always gives the same kernel. Steps name stages, not
weights: a trace fits every region with the same structure.

The variant is called `tuned-` and the digest of the trace, so that a better record is another candidate
with a cost of its own. The traces lie as files in `TvmBackend.recipes`, under their digests; whoever
compiles has them there.
"""

import hashlib
import json
from pathlib import Path

import tvm
from tvm import s_tir, tirx

from collage.backends.tvm.inline import inline_endings, inline_stages
from collage.backends.tvm.lower import SYMBOL, last_line
from collage.backends.tvm.schedule import OPAQUE, attempt
from collage.errors import BackendError

PREFIX = "tuned-"


def recipe_name(trace: str) -> str:
    """Return the digest that names a trace."""
    return hashlib.sha256(trace.encode()).hexdigest()[:32]


def write_recipe(folder: Path, trace: str) -> str:
    """Put the trace where the backend looks for it; return the variant that uses it."""
    name = recipe_name(trace)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(trace)
    return PREFIX + name


def read_recipe(folder: Path | None, variant: str) -> str:
    """Return the trace of a variant.

    Raises:
        BackendError: it is not there, or is not what its name says.
    """
    name = variant.removeprefix(PREFIX)
    try:
        trace = (folder / name).read_text() if folder else ""
    except OSError as error:
        raise BackendError(f"the tuning record {name} cannot be read: {error.strerror}") from error
    if recipe_name(trace) != name:
        raise BackendError(f"the tuning record {name} is not here, or was changed")
    return trace


def unscheduled(function: tirx.PrimFunc, device: str = "cpu") -> tvm.IRModule:
    """Return what traces start from: injective stages are computed where they are read.

    On a GPU those before a product are not: the search copies operands to the memory of a block.
    """
    named = function.with_attr("global_symbol", SYMBOL).with_attr("op_pattern", OPAQUE)
    plan = s_tir.Schedule(tvm.IRModule({SYMBOL: named}))
    plan.work_on(SYMBOL)
    return attempt(plan, inline_stages if device == "cpu" else inline_endings).mod


def apply_trace(function: tirx.PrimFunc, trace: str, device: str = "cpu") -> tvm.IRModule:
    """Return a module that holds `function`, scheduled by the trace, under `SYMBOL`.

    Raises:
        BackendError: the trace does not fit the function.
    """
    try:
        plan = s_tir.Schedule(unscheduled(function, device), error_render_level="fast")
        s_tir.schedule.Trace.apply_json_to_schedule(json.loads(trace), plan)
        return plan.mod
    except Exception as error:  # TVM's share no base class
        raise BackendError(f"the tuning record does not fit: {last_line(error)}") from error
