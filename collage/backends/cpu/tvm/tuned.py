"""Kernels whose schedule was searched for: a recorded trace, applied to the region's function.

A trace lists the steps of a schedule with every decision in it (tile sizes, unrolling, where a stage
is computed), so applying it searches nothing and always gives the same kernel. Steps name stages, not
weights: a trace fits every region with the same structure.

Traces come from a store, so nothing of one is believed: what it says is checked before TVM reads it
(`collage.backends.cpu.tvm.trace_check`), and what comes out before it is compiled: a schedule
computes what the function does, so it has about as many steps and needs about as much memory.

The variant is called `tuned-` and the digest of the trace, so that a better record is another candidate
with a cost of its own. The traces lie as files in `TvmBackend.recipes`, under their digests; whoever
compiles has them there.
"""

import hashlib
from collections.abc import Iterator
from math import prod
from pathlib import Path

import tvm
from tvm import s_tir, tirx

from collage.backends.cpu.tvm.inline import inline_endings, inline_stages
from collage.backends.cpu.tvm.lower import SYMBOL, last_line
from collage.backends.cpu.tvm.schedule import OPAQUE, attempt
from collage.backends.cpu.tvm.trace_check import LONGEST_VECTOR, check_trace
from collage.errors import BackendError
from collage.store.records import RecordError, parse_json

PREFIX = "tuned-"

MOST_STEPS = 4096
"""Times the function's own. Stages that are computed where they are read are computed again there: a GPU's
threads copy 150 times as much as a small convolution reads."""
MOST_BYTES = 16
"""Times the function's own tensors."""
SPARE_BYTES = 1 << 20


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
        return replay(trace, unscheduled(function, device)).mod
    except Exception as error:  # TVM's share no base class
        raise BackendError(f"the tuning record does not fit: {last_line(error)}") from error


def replay(trace: str, module: tvm.IRModule) -> s_tir.Schedule:
    """Return the schedule that a trace makes of a module from `unscheduled`.

    Raises:
        RecordError: the trace says more than a schedule may, or what it makes is out of proportion.
        Exception: of TVM, for a trace that does not fit the module.
    """
    steps = check_trace(parse_json(trace))
    plan = s_tir.Schedule(module, error_render_level="fast")
    before = _Size(plan)
    s_tir.schedule.Trace.apply_json_to_schedule(steps, plan)
    after = _Size(plan)
    if after.steps > MOST_STEPS * before.steps:
        raise RecordError(f"{after.steps} steps, where the function has {before.steps}")
    if after.memory_bytes > MOST_BYTES * before.memory_bytes + SPARE_BYTES:
        raise RecordError(f"{after.memory_bytes} bytes, where it has {before.memory_bytes}")
    if after.vector > max(LONGEST_VECTOR, before.vector):
        raise RecordError(f"a vector of {after.vector} elements")
    return plan


class _Size:
    """Steps of the innermost loops, bytes of all tensors, and the longest vector of a schedule."""

    def __init__(self, plan: s_tir.Schedule) -> None:
        root = plan.get_sblock("root", SYMBOL)
        buffers = [*plan.mod[SYMBOL].params, *plan.get(root).alloc_buffers]
        self.steps, self.vector = 0, 0
        for block in _blocks(plan, root):
            loops = [plan.get(loop) for loop in plan.get_loops(block)]
            self.steps += prod(int(loop.extent) for loop in loops)
            vectors = [int(one.extent) for one in loops if one.kind == tirx.ForKind.VECTORIZED]
            self.vector = max([self.vector, *vectors])
            buffers += plan.get(block).alloc_buffers
        self.memory_bytes = sum(_bytes(buffer) for buffer in buffers)


def _blocks(plan: s_tir.Schedule, root: object) -> Iterator[object]:
    for block in plan.get_child_blocks(root):
        yield block
        yield from _blocks(plan, block)


def _bytes(buffer: tirx.Buffer) -> int:
    size = prod(int(length) for length in buffer.shape)
    return size * tvm.DataType(str(buffer.dtype)).bits // 8
