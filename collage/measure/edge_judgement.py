"""The judgement of a kernel on edge inputs (`collage.frontend.edge_inputs`), after its ordinary one.

The reference is unoptimised ONNX Runtime. docs/numerics.md has the rules:

* finite edge values, extreme integers and negative indices: the same numbers, as on ordinary inputs;
* an index out of range: an error, where ONNX Runtime gives one;
* NaN: an output that is NaN in the reference and a number in the kernel is hidden. That is recorded, not
  refused (`EdgeJudgement.hides_nan`); `--keep-nan` refuses it;
* NaN where the reference has none is wrong unless the element depends on a special input: ONNX Runtime loses
  NaN itself in some maxima. Winograd's algorithm may spread it (`Backend.spreads_nan`);
* infinities stay, or become NaN; beyond `MASK` a number counts as infinite.

Which elements depend on the special ones is only computed where it matters: the reference runs with large
numbers in their place.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from collage.frontend.edge_inputs import EdgeInputs, EdgeKind, edge_inputs
from collage.frontend.model import Function
from collage.frontend.region_reference import RegionReference
from collage.graph.index_set import IndexSet, indices
from collage.measure.numerics import difference, reduced_difference
from collage.runtime.precision import MASK

logger = logging.getLogger(__name__)

LARGE = 1e4
"""Number in place of a special element, to find what depends on it."""
_MAKES_INTEGERS = frozenset({"Cast", "CastLike", "QuantizeLinear", "DynamicQuantizeLinear"})
Run = Callable[[Sequence[np.ndarray]], tuple[np.ndarray, ...]]
"""Runs a kernel on inputs; raises where the kernel fails."""


@dataclass(frozen=True)
class EdgeJudgement:
    """The judgement of a kernel.

    Attributes:
        defect: defect in words, or "".
        hides_nan: whether the kernel gives a number where the original gives NaN.
    """

    defect: str = ""
    hides_nan: bool = False


@dataclass(frozen=True)
class EdgeCase:
    """Edge inputs, and the reference's outputs on them: None where ONNX Runtime refuses the inputs."""

    edges: EdgeInputs
    expected: tuple[np.ndarray, ...] | None


class EdgeCases:
    """The edge cases of one region.

    Attributes:
        cases: inputs and expected outputs.
        judges_integers: whether integer outputs are defined on NaN and infinities.
    """

    def __init__(self, function: Function, nodes: IndexSet, ordinary: Sequence[np.ndarray]) -> None:
        self._ordinary = tuple(ordinary)
        self._reference = RegionReference(function, nodes)
        self._usual = self._run(ordinary)
        operators = {function.graph.nodes[index].op for index in indices(nodes)}
        self.judges_integers = not operators & _MAKES_INTEGERS
        # A region that ONNX Runtime does not run alone has no reference.
        listed = () if self._usual is None else edge_inputs(function, nodes, ordinary)
        self.cases = list(self._judged(listed))

    def _judged(self, listed: Iterable[EdgeInputs]) -> Iterator[EdgeCase]:
        """Yield the cases without those on which the reference has no end; no kernel is judged there."""
        for edges in listed:
            try:
                yield EdgeCase(edges, self._reference.run(edges.inputs))
            except TimeoutError as error:
                logger.debug("%s is not judged: %s", edges.kind, error)

    def _run(self, inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...] | None:
        """Return the reference's outputs; None where it refuses the inputs or does not end."""
        try:
            return self._reference.run(inputs)
        except TimeoutError:
            return None

    def dependent(self, edges: EdgeInputs) -> list[np.ndarray]:
        """Return for each output the mask of the elements that depend on the special inputs.

        An output of another shape depends on them as a whole.
        """
        assert self._usual is not None
        masks = [np.zeros(output.shape, np.bool_) for output in self._usual]
        for number in (LARGE, -LARGE):
            inputs = [
                value if mask is None else np.where(mask, number, value).astype(value.dtype)
                for value, mask in zip(self._ordinary, edges.special, strict=True)
            ]
            run = self._run(inputs) or self._usual
            for mask, output, usual in zip(masks, run, self._usual, strict=True):
                if output.shape != usual.shape:
                    mask[...] = True
                    continue
                mask |= ~((output == usual) | ((output != output) & (usual != usual)))
        return masks


@dataclass(frozen=True, kw_only=True)
class EdgeRules:
    """What a kernel is allowed.

    Attributes:
        quantised: the region rounds to small integers.
        reduced: the kernel computes in reduced precision.
        spreads_nan: NaN may reach elements that do not depend on it.
    """

    quantised: bool = False
    reduced: bool = False
    spreads_nan: bool = False


def judge_edges(cases: EdgeCases, run: Run, rules: EdgeRules) -> EdgeJudgement:
    """Run the kernel on every edge case; return the first defect, and whether it hides NaN."""
    hides = False
    for case in cases.cases:
        is_special = case.edges.kind in (EdgeKind.NAN, EdgeKind.INFINITE)
        if case.expected is None and case.edges.kind is not EdgeKind.INDEX_OUT_OF_RANGE:
            continue  # ONNX Runtime refuses these values, so no kernel meets them
        if is_special and rules.quantised:
            continue
        try:
            actual = run(case.edges.inputs)
        except Exception as error:  # noqa: BLE001 - a toolchain's exceptions share no base class
            if case.expected is None:
                continue
            return EdgeJudgement(f"fails on {case.edges.kind}: {_last_line(error)}", hides)
        if case.expected is None:
            return EdgeJudgement("answers where ONNX Runtime refuses an index out of range", hides)
        if not is_special:
            defect = _ordinary_defect(case.expected, actual, rules)
        else:
            defect, hidden = _special_defect(cases, case, actual, rules)
            hides = hides or hidden
        if defect:
            return EdgeJudgement(f"{defect}, on {case.edges.kind}", hides)
    return EdgeJudgement("", hides)


def _ordinary_defect(
    expected: Sequence[np.ndarray], actual: Sequence[np.ndarray], rules: EdgeRules
) -> str:
    if rules.reduced:
        return reduced_difference(expected, actual)[0]
    pairs = [_same_large(e, a) for e, a in zip(expected, actual, strict=True)]
    return difference([e for e, _ in pairs], [a for _, a in pairs], quantised=rules.quantised)


def _same_large(expected: np.ndarray, actual: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return both with infinities in place of numbers beyond `MASK`."""
    if expected.dtype.kind != "f" or expected.shape != actual.shape:
        return expected, actual
    return _as_infinite(expected), _as_infinite(actual)


def _as_infinite(value: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        large = np.abs(value) >= MASK
    return np.where(large, np.copysign(np.inf, value), value).astype(value.dtype)


def _special_defect(
    cases: EdgeCases, case: EdgeCase, actual: Sequence[np.ndarray], rules: EdgeRules
) -> tuple[str, bool]:
    """Return the defect on NaN or infinities, and whether NaN is hidden."""
    assert case.expected is not None
    hides, compared = False, []
    masks: list[np.ndarray] | None = None
    for position, (reference, output) in enumerate(zip(case.expected, actual, strict=True)):
        if reference.shape != output.shape or reference.dtype != output.dtype:
            return f"output {position} is {output.dtype}{output.shape}", hides
        if reference.dtype.kind != "f":
            if cases.judges_integers and case.edges.kind is EdgeKind.INFINITE:
                compared.append((reference, output))
            continue
        reference, output = _same_large(reference, output)
        hides = hides or bool((np.isnan(reference) & ~np.isnan(output)).any())
        free = np.isnan(reference) | (np.isnan(output) & rules.spreads_nan)
        if not rules.reduced and difference(
            [np.where(free, 0, reference)], [np.where(free, 0, output)]
        ):
            masks = masks or cases.dependent(case.edges)
            mask = masks[position]
            depends = mask if mask.shape == free.shape else np.ones_like(free)
            free |= depends & (np.isnan(output) | (case.edges.kind is EdgeKind.NAN))
        zero = np.zeros((), reference.dtype)
        compared.append((np.where(free, zero, reference), np.where(free, zero, output)))
    if rules.reduced:
        return "", hides
    return difference([e for e, _ in compared], [a for _, a in compared]), hides


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
