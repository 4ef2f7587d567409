"""Which nodes of a region become post-operations of which step.

A region is cut into units: single nodes, and activations that ONNX spells with several nodes
(`activations.py`). A step takes the unit that reads its result into itself while that unit is the
only reader, the result is no output of the region, and it is element-wise in that result or a
reshape of it. A constant summand per channel becomes the step's bias. A group is emitted where its
last node was, so that the other operand of a residual sum exists by then.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from collage.backends.cpu.onednn.activations import Activation, activations_within
from collage.backends.cpu.onednn.elementwise import ELEMENTWISE, terms
from collage.backends.cpu.onednn.program import FUSIBLE, Draft, Post
from collage.backends.cpu.onednn.translate import RESHAPES, bias_source, translate
from collage.backends.cpu.onednn.view import NodeView
from collage.errors import BackendError
from collage.frontend.model import Function
from collage.graph.index_set import IndexSet, indices

MAX_POSTS = 32
"""oneDNN's limit."""

Unit = int | Activation


@dataclass(frozen=True)
class Group:
    """Drafts with everything that they took in; `last` is the last node's index."""

    drafts: list[Draft]
    last: int


def plan_steps(
    function: Function,
    nodes: IndexSet,
    outputs: tuple[str, ...],
    activations: Sequence[Activation],
) -> list[Draft]:
    """Return the steps of a region in an order in which they can run.

    Args:
        function: holds the region.
        nodes: the region.
        outputs: its outputs.
        activations: those of the whole function (`all_activations`).

    Raises:
        BackendError: a node cannot run here.
    """
    inside = activations_within(function, activations, nodes, frozenset(outputs))
    groups = sorted(_Fuser(function, nodes, outputs, inside).groups(), key=lambda group: group.last)
    return [draft for group in groups for draft in group.drafts]


class _Fuser:
    def __init__(
        self,
        function: Function,
        nodes: IndexSet,
        outputs: tuple[str, ...],
        activations: Iterator[Activation],
    ) -> None:
        self._function = function
        self._outputs = frozenset(outputs)
        self._units: dict[int, Unit] = {}
        for index in indices(nodes):
            self._units[index] = index
        for found in activations:
            for index in indices(found.nodes):
                self._units[index] = found
        self._nodes = nodes
        self._taken: IndexSet = 0

    def groups(self) -> Iterator[Group]:
        for index in indices(self._nodes):
            if self._taken >> index & 1:
                continue
            unit = self._units[index]
            self._take(unit)
            drafts, last = self._start(unit)
            if len(drafts) == 1 and drafts[0].op in FUSIBLE:
                last = max(last, self._grow(drafts[0]))
            yield Group(drafts, last)

    def _take(self, unit: Unit) -> None:
        self._taken |= 1 << unit if isinstance(unit, int) else unit.nodes

    def _start(self, unit: Unit) -> tuple[list[Draft], int]:
        if isinstance(unit, int):
            return translate(NodeView(self._function, unit)), unit
        last = unit.nodes.bit_length() - 1
        view = NodeView(self._function, last)
        first = next(indices(unit.nodes))
        source = NodeView(self._function, first).source(
            self._function.graph.nodes[first].inputs.index(unit.value)
        )
        return [view.draft("eltwise", [source], unit.post.as_step())], last

    def _grow(self, draft: Draft) -> int:
        """Take readers into `draft` as long as that works; return the last node taken, or -1."""
        last = -1
        while (unit := self._only_reader(draft.result)) is not None:
            posts = self._posts(draft, unit)
            if posts is None or len(draft.posts) + len(posts) > MAX_POSTS:
                break
            self._take(unit)
            last = unit if isinstance(unit, int) else unit.nodes.bit_length() - 1
            draft.result = self._function.graph.nodes[last].outputs[0]
            draft.result_shape = self._function.graph.types[draft.result].shape or (1,)
            draft.posts += posts
        return last

    def _only_reader(self, value: str) -> Unit | None:
        if value in self._outputs:
            return None
        readers = list(indices(self._function.graph.readers.get(value, 0) & self._nodes))
        units = {id(self._units[one]): self._units[one] for one in readers}
        if len(units) != 1:
            return None
        (unit,) = units.values()
        free = isinstance(unit, Activation) or not self._taken >> unit & 1
        return unit if free else None

    def _posts(self, draft: Draft, unit: Unit) -> list[Post] | None:
        if not isinstance(unit, int):
            return [unit.post] if unit.value == draft.result else None
        view = NodeView(self._function, unit)
        inputs = view.node.inputs
        position = inputs.index(draft.result)
        if inputs.count(draft.result) != 1:
            return None
        try:
            if view.node.op in RESHAPES and position == 0:
                translate(view)
                return []
            if view.node.op not in ELEMENTWISE or view.result_shape != draft.result_shape:
                return None
            found = terms(view, position)
        except BackendError:
            return None
        return self._fitted(draft, found)

    def _fitted(self, draft: Draft, posts: list[Post]) -> list[Post] | None:
        fitted = []
        for post in posts:
            if post.operand is None:
                fitted.append(post)
                continue
            bias = bias_source(draft, post.operand) if post.algorithm == "add" else None
            if bias is not None:
                draft.sources = (*draft.sources, bias)
                continue
            operand = draft.fitted(post.operand)
            if operand is None or post.operand.name == draft.result:
                return None
            fitted.append(Post(post.algorithm, operand=operand))
        return fitted
