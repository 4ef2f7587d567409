"""Analysis of one stage (TIR block) of a kernel: its loops and their strides in memory.

Scheduling rules depend on strides: the elements per step of a loop, in each tensor of the stage. Loops
contiguous in all tensors may be fused; a loop with stride 0 or 1 everywhere may be vectorised; a read with
its contiguous loop outside of the innermost one is a transposition. Strides come from TVM's analysis of the
flat offset: reshapes fused into a stage (divisions and remainders by constants) are simplified away where
possible. A stride is None if the offset is not linear in the loop.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from tvm import ir, s_tir, sym, tirx

Block: TypeAlias = s_tir.schedule.SBlockRV
Loop: TypeAlias = s_tir.schedule.LoopRV

SLOW_CALLS = frozenset({
    "tirx.exp", "tirx.erf", "tirx.tanh", "tirx.sigmoid", "tirx.log", "tirx.pow", "tirx.sqrt",
    "tirx.rsqrt", "tirx.sin", "tirx.cos", "tirx.call_pure_extern",
})  # fmt: skip
_OPERANDS = ("a", "b", "value", "condition", "true_value", "false_value", "args", "indices", "body")


@dataclass(frozen=True)
class Access:
    """One read or write; `strides` are in elements, one per loop of the nest."""

    buffer: tirx.Buffer
    strides: tuple[int | None, ...]
    writes: bool


@dataclass(frozen=True)
class Nest:
    """A stage with all its loops.

    Attributes:
        block: the stage.
        loops: its loops, outermost first.
        extents: iterations of each loop.
        reducing: whether each loop reduces.
        accesses: its reads and its write.
        guarded: whether each loop occurs in a condition of the stage (a padding, a concatenation).
        shared: number of leading loops in common with other stages.
        expressions: the stored value and its indices.
    """

    block: Block
    loops: tuple[Loop, ...]
    extents: tuple[int, ...]
    reducing: tuple[bool, ...]
    accesses: tuple[Access, ...]
    guarded: tuple[bool, ...]
    shared: int
    expressions: tuple[tirx.Expr, ...]

    @property
    def spatial(self) -> tuple[int, ...]:
        """The stage's own loops without reductions."""
        return tuple(n for n in range(self.shared, len(self.loops)) if not self.reducing[n])

    @property
    def reduced(self) -> tuple[int, ...]:
        return tuple(n for n, reduces in enumerate(self.reducing) if reduces)

    @property
    def reads(self) -> tuple[Access, ...]:
        """Reads without the accumulator of a reduction."""
        written = self.written.buffer
        return tuple(a for a in self.accesses if not a.writes and not a.buffer.same_as(written))

    @property
    def written(self) -> Access:
        return next(access for access in self.accesses if access.writes)

    @property
    def conditional(self) -> bool:
        return any(_is_call(part, {"prim.if_then_else"}) for part in self._parts())

    @property
    def expensive(self) -> bool:
        return any(_is_call(part, SLOW_CALLS) for part in self._parts())

    def _parts(self) -> Iterator[tirx.Expr]:
        for expression in self.expressions:
            yield from walk(expression)


def stages(plan: s_tir.Schedule) -> list[Block]:
    """Return all stages in order, at any depth of loops."""
    return list(plan.get_child_blocks(plan.get_sblock("root")))


def walk(expression: object) -> Iterator[tirx.Expr]:
    """Yield every expression within `expression`, itself included."""
    stack = [expression]
    while stack:
        node = stack.pop()
        yield node
        for name in _OPERANDS:
            inner = getattr(node, name, None)
            if isinstance(inner, tirx.Expr):
                stack.append(inner)
            elif name in ("args", "indices") and inner is not None:
                stack.extend(child for child in inner if isinstance(child, tirx.Expr))


def _is_call(expression: object, names: set[str] | frozenset[str]) -> bool:
    op = getattr(expression, "op", None)
    return isinstance(op, ir.Op) and op.name in names


def nest(plan: s_tir.Schedule, block: Block) -> Nest:
    """Analyse a stage in the current schedule.

    Raises:
        ValueError: the stage is not one store under plain loops.
    """
    loops = tuple(plan.get_loops(block))
    stage, realization = plan.get(block), _realization(plan, block, loops)
    if not isinstance(stage.body, tirx.BufferStore):
        raise ValueError("the stage is not one store")
    extents = tuple(int(plan.get(loop).extent) for loop in loops)
    variables = [plan.get(loop).loop_var for loop in loops]
    reducing = _reducing(stage, realization, variables)
    expressions = (stage.body.value, *stage.body.indices)
    accesses = _accesses(stage, realization, variables, extents)
    shared = sum(len(plan.get_child_blocks(loop)) > 1 for loop in loops)
    guarded = _guarded(stage, realization, variables, expressions)
    return Nest(
        block,
        loops,
        extents,
        reducing,
        accesses=accesses,
        guarded=guarded,
        shared=shared,
        expressions=expressions,
    )


def _realization(plan: s_tir.Schedule, block: Block, loops: tuple[Loop, ...]) -> object:
    stage = plan.get(block)
    if not loops:
        raise ValueError("the stage has no loop")
    stack = [plan.get(loops[-1]).body]
    while stack:
        node = stack.pop()
        if hasattr(node, "iter_values"):
            if node.block.same_as(stage):
                return node
        else:
            stack.extend(getattr(node, "seq", None) or [getattr(node, "body", None)])
    raise ValueError("the stage is not under its loops")


def _reducing(stage: object, realization: object, variables: list[tirx.Var]) -> tuple[bool, ...]:
    bound = [
        value
        for block_variable, value in zip(stage.iter_vars, realization.iter_values, strict=True)  # type: ignore[attr-defined]
        if block_variable.iter_type != tirx.IterVar.DataPar
    ]
    used = [part for value in bound for part in walk(value)]
    return tuple(any(variable.same_as(part) for part in used) for variable in variables)


def _guarded(
    stage: object,
    realization: object,
    variables: list[tirx.Var],
    expressions: tuple[tirx.Expr, ...],
) -> tuple[bool, ...]:
    conditions = [
        part.args[0]
        for expression in expressions
        for part in walk(expression)
        if _is_call(part, {"prim.if_then_else"})
    ]
    used = [part for condition in conditions for part in walk(condition)]
    bound = [
        inner
        for block_variable, value in zip(stage.iter_vars, realization.iter_values, strict=True)  # type: ignore[attr-defined]
        if any(block_variable.var.same_as(part) for part in used)
        for inner in walk(value)
    ]
    return tuple(any(variable.same_as(part) for part in bound) for variable in variables)


def _accesses(
    stage: object, realization: object, variables: list[tirx.Var], extents: tuple[int, ...]
) -> tuple[Access, ...]:
    names = [block_variable.var for block_variable in stage.iter_vars]  # type: ignore[attr-defined]
    analyzer = sym.Analyzer()
    for block_variable in stage.iter_vars:  # type: ignore[attr-defined]
        analyzer.bind(block_variable.var, block_variable.dom)
    per_loop = [
        _strides(value, variables, None)
        for value in realization.iter_values  # type: ignore[attr-defined]
    ]
    store = stage.body  # type: ignore[attr-defined]
    places = [(store.buffer, store.indices, True)]
    for expression in (store.value, *store.indices):
        for part in walk(expression):
            if isinstance(part, ir.TensorLoad):
                places.append((part.source, part.indices, False))
    result = []
    for buffer, indices, writes in places:
        by_name = _strides(_offset(buffer, indices), names, analyzer)
        strides = tuple(
            _combined(by_name, [row[position] for row in per_loop], extents[position])
            for position in range(len(variables))
        )
        result.append(Access(buffer, strides, writes))
    return tuple(result)


def _combined(outer: list[int | None], inner: list[int | None], extent: int) -> int | None:
    """Chain rule: offset by block variable, times block variable by loop."""
    if extent == 1:
        return 0
    total = 0
    for by_variable, by_loop in zip(outer, inner, strict=True):
        if by_variable == 0 or by_loop == 0:
            continue
        if by_variable is None or by_loop is None:
            return None
        total += by_variable * by_loop
    return total


def _offset(buffer: tirx.Buffer, indices: list[tirx.Expr]) -> tirx.Expr:
    shape = [int(size) for size in buffer.shape]
    offset: tirx.Expr = tirx.const(0, "int64")
    for position, index in enumerate(indices):
        wide = index if str(index.ty.dtype) == "int64" else tirx.Cast("int64", index)
        offset = offset + wide * tirx.const(prod(shape[position + 1 :]), "int64")
    return offset


def _strides(
    offset: tirx.Expr, variables: list[tirx.Var], analyzer: "sym.Analyzer | None"
) -> list[int | None]:
    simple = analyzer.simplify(offset) if analyzer else offset
    result: list[int | None] = []
    for variable in variables:
        if not any(variable.same_as(part) for part in walk(simple)):
            result.append(0)
            continue
        linear = sym.detect_linear_equation(simple, [variable])
        step = linear[0] if len(linear) == 2 else None
        result.append(int(step) if isinstance(step, tirx.IntImm) else None)
    return result
