"""Tuned schedules: recorded traces of a search, applied to a region's function.

A trace lists the steps of a schedule with all decisions (tile sizes, unrolling, locations of stages), so
applying it needs no search and always gives the same kernel. Steps refer to stages, not to weights: a trace
fits every region with the same structure.

Traces come from a store and are not trusted. The trace is checked before TVM reads it
(`collage.backends.common.tvm.trace_check`), its result before compilation: a schedule computes the function's
own result, so it has about as many steps and needs about as much memory.

The variant's name is `tuned-` and the digest of the trace: a better record is another candidate with a cost
of its own. Traces are files in `BuildContext.tuned_schedules_dir`, named by their digests.
"""

import hashlib
from collections.abc import Iterator
from math import prod
from pathlib import Path

import tvm
from tvm import s_tir, tirx

from collage.backends.common.tvm.inline import inline_endings, inline_stages
from collage.backends.common.tvm.lower import FUSED_SYMBOL, last_line
from collage.backends.common.tvm.schedule_steps import attempt
from collage.backends.common.tvm.trace_check import LONGEST_VECTOR, check_trace
from collage.errors import BackendError
from collage.runtime.target import Target
from collage.store.records import RecordError, parse_json

TUNED_PREFIX = "tuned-"
"""Of the names of variants with a tuned schedule; the digest of the trace follows."""

OPAQUE = 8
"""TVM's kind of functions exempt from its own passes."""

MAX_STEPS_RATIO = 4096
"""Largest ratio of a schedule's steps to the function's own. Inlined stages are computed repeatedly: a GPU's
threads copy 150 times the operands of a small convolution."""
MAX_MEMORY_RATIO = 16
"""Largest ratio of a schedule's tensors to the function's own, in bytes."""
SPARE_BYTES = 1 << 20


def trace_digest(trace: str) -> str:
    """Return the digest of a trace: the name of its file."""
    return hashlib.sha256(trace.encode()).hexdigest()[:32]


def write_trace(folder: Path, trace: str) -> str:
    """Write the trace to the backend's folder; return the name of its variant."""
    name = trace_digest(trace)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(trace)
    return TUNED_PREFIX + name


def read_trace(folder: Path | None, variant: str) -> str:
    """Return the trace of a variant.

    Raises:
        BackendError: the file is missing, or its digest is not its name.
    """
    name = variant.removeprefix(TUNED_PREFIX)
    try:
        trace = (folder / name).read_text() if folder else ""
    except OSError as error:
        raise BackendError(f"the tuning record {name} cannot be read: {error.strerror}") from error
    if trace_digest(trace) != name:
        raise BackendError(f"the tuning record {name} is not here, or was changed")
    return trace


def unscheduled(function: tirx.PrimFunc, device: Target = Target.CPU) -> tvm.IRModule:
    """Return the starting point of traces: the function with injective stages inlined.

    On a GPU stages before a product remain: the search copies operands to the memory of a block.
    """
    named = function.with_attr("global_symbol", FUSED_SYMBOL).with_attr("op_pattern", OPAQUE)
    plan = s_tir.Schedule(tvm.IRModule({FUSED_SYMBOL: named}))
    plan.work_on(FUSED_SYMBOL)
    return attempt(plan, inline_endings if device.is_gpu else inline_stages).mod


def apply_trace(function: tirx.PrimFunc, trace: str, device: Target = Target.CPU) -> tvm.IRModule:
    """Return a module with `function`, scheduled by the trace, under `FUSED_SYMBOL`.

    Raises:
        BackendError: the trace does not fit the function.
    """
    try:
        return replay(trace, unscheduled(function, device)).mod
    except Exception as error:  # TVM's errors share no base class
        raise BackendError(f"the tuning record does not fit: {last_line(error)}") from error


def replay(trace: str, module: tvm.IRModule) -> s_tir.Schedule:
    """Return the schedule of a module from `unscheduled` after the steps of a trace.

    Raises:
        RecordError: a step is not allowed in a schedule, or the result is out of proportion.
        Exception: TVM's own, for a trace of another function.
    """
    steps = check_trace(parse_json(trace))
    plan = s_tir.Schedule(module, error_render_level="fast")
    before = _Size(plan)
    s_tir.schedule.Trace.apply_json_to_schedule(steps, plan)
    after = _Size(plan)
    if after.steps > MAX_STEPS_RATIO * before.steps:
        raise RecordError(f"{after.steps} steps, where the function has {before.steps}")
    if after.memory_bytes > MAX_MEMORY_RATIO * before.memory_bytes + SPARE_BYTES:
        raise RecordError(f"{after.memory_bytes} bytes, where it has {before.memory_bytes}")
    if after.vector > max(LONGEST_VECTOR, before.vector):
        raise RecordError(f"a vector of {after.vector} elements")
    return plan


class _Size:
    """Iterations of the innermost loops, bytes of all tensors, and longest vector of a schedule."""

    def __init__(self, plan: s_tir.Schedule) -> None:
        root = plan.get_sblock("root", FUSED_SYMBOL)
        buffers = [*plan.mod[FUSED_SYMBOL].params, *plan.get(root).alloc_buffers]
        self.steps, self.vector = 0, 0
        for block in _blocks(plan, root):
            loops = [plan.get(loop) for loop in plan.get_loops(block)]
            self.steps += prod(int(loop.extent) for loop in loops)
            vectors = [int(loop.extent) for loop in loops if loop.kind == tirx.ForKind.VECTORIZED]
            self.vector = max([self.vector, *vectors])
            buffers += plan.get(block).alloc_buffers
        self.memory_bytes = sum(_bytes(buffer) for buffer in buffers)


def _blocks(plan: s_tir.Schedule, root: object) -> Iterator[object]:
    for block in plan.get_child_blocks(root):
        yield block
        yield from _blocks(plan, block)


def _bytes(buffer: tirx.Buffer) -> int:
    size = prod(int(length) for length in buffer.shape)
    return size * int(tvm.DataType(str(buffer.dtype)).bits) // 8
