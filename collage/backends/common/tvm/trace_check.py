"""Validation of a recorded schedule before TVM reads it.

A trace is a program: a list of instructions, each with inputs, attributes and outputs, and sampled
decisions for some of them. TVM executes every instruction, and some are more than a schedule: an annotation
`pragma_import_llvm` links a module of LLVM into the kernel, and its constructors run at load time;
`pragma_import_c` does the same with C. Traces come from a store with other writers, so only the forms of
`collage.tuning.schedule_search` are accepted:

* the kinds of instructions in `_KINDS`, with attributes of their types;
* annotations with the keys in `_ANNOTATIONS` and integer values, each within its bound;
* the memories and threads listed here;
* decisions of samples, as small integers.

TVM checks that the steps fit the function; `collage.backends.common.tvm.tuned_schedules` checks the size of
the result. Time is linear in the size of the trace.
"""

import re
from collections.abc import Callable, Mapping
from typing import NoReturn

from collage.store.records import RecordError

MOST_INSTRUCTIONS = 2000
"""Searches record some dozens."""
MOST_VALUES = 256
"""Inputs or outputs of one instruction."""
MOST_UNROLLED = 64
"""Largest unrolled loop; with TVM's 512, LLVM compiles for seconds."""
LONGEST_VECTOR = 64
LARGEST_TILE = 1 << 16
MOST_THREADS = 1024
MOST_JOBS = 1 << 16

_NAME = re.compile(r"[blv][0-9]{1,6}")
_BLOCK = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,199}")
_TILING = re.compile(r'"[SR]{1,16}"')
_SCOPES = frozenset({"global", "local", "shared"})
_THREADS = frozenset(
    f"{kind}.{axis}" for kind in ("blockIdx", "threadIdx", "vthread") for axis in "xyz"
)

_ANNOTATIONS: Mapping[str, int] = {
    "meta_schedule.cooperative_fetch": LARGEST_TILE,
    "meta_schedule.parallel": MOST_JOBS,
    "meta_schedule.random_compute_producer": 1,
    "meta_schedule.thread_extent_high_inclusive": MOST_THREADS,
    "meta_schedule.thread_extent_low_inclusive": MOST_THREADS,
    "meta_schedule.unroll_explicit": MOST_UNROLLED,
    "meta_schedule.unroll_implicit": MOST_UNROLLED,
    "meta_schedule.vectorize": LONGEST_VECTOR,
    "pragma_auto_unroll_max_step": MOST_UNROLLED,
    "pragma_unroll_explicit": 1,
}
"""The greatest value of each."""
_STRUCTURE = "meta_schedule.tiling_structure"
_PRAGMA = "pragma_"


def check_trace(trace: object) -> list[object]:
    """Return the trace (parsed JSON). Raises RecordError for anything but a schedule."""
    if not isinstance(trace, list) or len(trace) != 2:
        _refuse("a trace is a list of instructions and one of decisions")
    instructions, decisions = trace
    for part in (instructions, decisions):
        if not isinstance(part, list) or len(part) > MOST_INSTRUCTIONS:
            _refuse(f"a trace has at most {MOST_INSTRUCTIONS} instructions and decisions")
    kinds = [_instruction(instruction) for instruction in instructions]
    for decision in decisions:
        _decision(decision, kinds)
    return trace


def _instruction(instruction: object) -> str:
    """Check one instruction; return its kind."""
    if not isinstance(instruction, list) or len(instruction) != 4:
        _refuse("an instruction is a kind, inputs, attributes and outputs")
    kind, *parts = instruction
    if not isinstance(kind, str) or kind not in _KINDS:
        _refuse(f"the instruction {str(kind)[:40]!r} is none of a schedule")
    inputs, attributes, outputs = (_listed(kind, part) for part in parts)
    if not all(_is_name(output) for output in outputs):
        _refuse(f"an output of {kind}")
    _KINDS[kind](kind, inputs, attributes)
    return kind


def _listed(kind: str, part: object) -> list[object]:
    if not isinstance(part, list) or len(part) > MOST_VALUES:
        _refuse(f"{kind} has at most {MOST_VALUES} inputs, attributes or outputs")
    return part


def _plain(kind: str, inputs: list[object], attributes: list[object]) -> None:
    """Check blocks, loops and sizes; attributes are flags and small numbers."""
    for operand in inputs:
        if not (
            _is_name(operand) or operand in (None, "None") or _is_number(operand, 0, LARGEST_TILE)
        ):
            _refuse(f"an input of {kind}")
    for attribute in attributes:
        if not (isinstance(attribute, bool) or _is_number(attribute, -1, MOST_VALUES)):
            _refuse(f"an attribute of {kind}")


def _block(kind: str, inputs: list[object], attributes: list[object]) -> None:
    if inputs or not all(isinstance(name, str) and _BLOCK.fullmatch(name) for name in attributes):
        _refuse(f"the block of {kind}")


def _copy(kind: str, inputs: list[object], attributes: list[object]) -> None:
    """Check a copy to another memory: a block, its consumers, a buffer's number, the memory."""
    names = [
        name for operand in inputs for name in (operand if isinstance(operand, list) else [operand])
    ]
    if len(names) > MOST_VALUES or not all(map(_is_name, names)):
        _refuse(f"an input of {kind}")
    if len(attributes) != 2 or not _is_number(attributes[0], 0, MOST_VALUES):
        _refuse(f"the buffer of {kind}")
    if not _is_one_of(attributes[1], _SCOPES):
        _refuse(f"the memory of {kind}")


def _bind(kind: str, inputs: list[object], attributes: list[object]) -> None:
    fits = len(attributes) == 1 and _is_one_of(attributes[0], _THREADS)
    if not fits or not all(map(_is_name, inputs)):
        _refuse(f"the threads of {kind}")


def _tile(kind: str, inputs: list[object], attributes: list[object]) -> None:
    if not all(map(_is_name, inputs)):
        _refuse(f"an input of {kind}")
    if not all(_is_number(factor, 1, LARGEST_TILE) for factor in attributes):
        _refuse(f"the tiles of {kind}")


def _choice(kind: str, inputs: list[object], attributes: list[object]) -> None:
    if inputs or len(attributes) != 2:
        _refuse(f"the choices of {kind}")
    values, shares = (_listed(kind, attribute) for attribute in attributes)
    if len(values) != len(shares) or not all(
        _is_number(choice, 0, MOST_THREADS) for choice in values
    ):
        _refuse(f"the choices of {kind}")
    if not all(
        isinstance(probability, int | float) and 0 <= probability <= 1 for probability in shares
    ):
        _refuse(f"the probabilities of {kind}")


def _annotation(kind: str, inputs: list[object], attributes: list[object]) -> None:
    key = _key(kind, attributes)
    if len(inputs) != 2 or not _is_name(inputs[0]):
        _refuse(f"the place of {key}")
    value = inputs[1]
    if key == _STRUCTURE:
        fits = isinstance(value, str) and _TILING.fullmatch(value) is not None
    else:  # sampled values have bounds of their own; pragmas, read by compilers, must be numbers
        drawn = _is_name(value) and not key.startswith(_PRAGMA)
        fits = drawn or _is_number(value, 0, _ANNOTATIONS[key])
    if not fits:
        _refuse(f"the value of {key}")


def _no_annotation(kind: str, inputs: list[object], attributes: list[object]) -> None:
    _key(kind, attributes)
    if not all(map(_is_name, inputs)):
        _refuse(f"an input of {kind}")


def _key(kind: str, attributes: list[object]) -> str:
    key = attributes[0] if len(attributes) == 1 else None
    if not isinstance(key, str) or (key not in _ANNOTATIONS and key != _STRUCTURE):
        _refuse(f"the annotation {str(key)[:40]!r} is none of a schedule")
    return key


_KINDS: Mapping[str, Callable[[str, list[object], list[object]], None]] = {
    **dict.fromkeys(
        (
            "AddUnitLoop", "ComputeAt", "ComputeInline", "DecomposeReduction", "EnterPostproc", "Fuse",
            "GetChildBlocks", "GetConsumers", "GetLoops", "GetProducers", "Parallel", "RFactor",
            "Reorder", "ReverseComputeAt", "ReverseComputeInline", "SampleComputeLocation", "Split",
            "Vectorize",
        ),
        _plain,
    ),
    "Annotate": _annotation,
    "Bind": _bind,
    "CacheRead": _copy,
    "CacheWrite": _copy,
    "GetSBlock": _block,
    "SampleCategorical": _choice,
    "SamplePerfectTile": _tile,
    "Unannotate": _no_annotation,
}  # fmt: skip


def _decision(decision: object, kinds: list[str]) -> None:
    if not isinstance(decision, list) or len(decision) != 2:
        _refuse("a decision is an instruction's number and a value")
    place, value = decision
    if not _is_number(place, 0, len(kinds) - 1):
        _refuse("a decision of no instruction")
    values = value if isinstance(value, list) else [value]
    if len(values) > MOST_VALUES or not all(
        _is_number(number, -2, LARGEST_TILE) for number in values
    ):
        _refuse("the value of a decision")


def _is_name(value: object) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def _is_one_of(value: object, allowed: frozenset[str]) -> bool:
    return isinstance(value, str) and value in allowed


def _is_number(value: object, minimum: int, maximum: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= maximum


def _refuse(part: str) -> NoReturn:
    raise RecordError(f"the trace is refused: {part}")
