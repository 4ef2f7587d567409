"""Hand-written graphs for tests of rules, benchmarks and documentation.

>>> graph = GraphBuilder()
>>> x = graph.input("x")
>>> graph.returns(graph.add("Relu", x))
>>> graph.build().nodes[0].op
'Relu'
"""

from collections.abc import Sequence

from collage.graph.dataflow import DataflowGraph, Node, TensorType
from collage.graph.op_pattern import OpPatternKind as Kind

KINDS = {
    "Conv": Kind.OUT_ELEMWISE_FUSABLE, "MatMul": Kind.OUT_ELEMWISE_FUSABLE,
    "Gemm": Kind.OUT_ELEMWISE_FUSABLE, "Softmax": Kind.OUT_ELEMWISE_FUSABLE,
    "LayerNormalization": Kind.OUT_ELEMWISE_FUSABLE, "MaxPool": Kind.INJECTIVE,
    "Add": Kind.BROADCAST, "Mul": Kind.BROADCAST, "Sub": Kind.BROADCAST, "Div": Kind.BROADCAST,
    "Pow": Kind.BROADCAST, "Relu": Kind.ELEMWISE, "Tanh": Kind.ELEMWISE, "Abs": Kind.ELEMWISE,
    "Sigmoid": Kind.ELEMWISE, "Gelu": Kind.ELEMWISE, "Reshape": Kind.INJECTIVE,
    "Transpose": Kind.INJECTIVE, "Concat": Kind.INJECTIVE, "Split": Kind.INJECTIVE,
    "Unsqueeze": Kind.INJECTIVE, "ReduceMean": Kind.COMM_REDUCE, "constant": Kind.ELEMWISE,
    "tuple": Kind.INJECTIVE, "tuple_get_item": Kind.INJECTIVE, "LSTM": Kind.OPAQUE,
    "Shape": Kind.OPAQUE,
}  # fmt: skip
"""Kinds of operators in hand-written graphs; all further operators are element-wise."""


class GraphBuilder:
    """Collects nodes in topological order; every value has one shape unless given."""

    def __init__(self, shape: tuple[int, ...] = (10, 10)) -> None:
        self._type = TensorType(shape, "float32")
        self._nodes: list[Node] = []
        self._types: dict[str, TensorType] = {}
        self._inputs: list[str] = []
        self._outputs: tuple[str, ...] = ()
        self._constants: set[str] = set()

    def input(self, name: str) -> str:
        """Declare a function input and return its value."""
        self._inputs.append(name)
        self._types[name] = self._type
        return name

    def weight(self, name: str = "") -> str:
        """Declare a weight (an operand, no node) and return its value."""
        value = name or f"w{len(self._constants)}"
        self._constants.add(value)
        self._types[value] = self._type
        return value

    def add(self, op: str, *inputs: str, name: str = "", kind: Kind | None = None) -> str:
        """Append a node with one output and return the output."""
        return self.add_many(op, inputs, 1, name=name, kind=kind)[0]

    def add_many(
        self,
        op: str,
        inputs: Sequence[str],
        outputs: int,
        *,
        name: str = "",
        kind: Kind | None = None,
    ) -> tuple[str, ...]:
        """Append a node with several outputs and return them."""
        index = len(self._nodes)
        name = name or f"{op.lower()}{index}"
        values = tuple(f"{name}.{position}" if outputs > 1 else name for position in range(outputs))
        self._types.update(dict.fromkeys(values, self._type))
        node_kind = KINDS.get(op, Kind.ELEMWISE) if kind is None else kind
        self._nodes.append(Node(index, name, op, node_kind, inputs=tuple(inputs), outputs=values))
        return values

    def returns(self, *values: str) -> None:
        """Set the function's outputs."""
        self._outputs = values

    def build(self) -> DataflowGraph:
        """Return the graph; without `returns`, the last node is returned."""
        outputs = self._outputs or self._nodes[-1].outputs
        return DataflowGraph(
            tuple(self._nodes),
            self._types,
            tuple(self._inputs),
            outputs,
            constants=frozenset(self._constants),
        )
