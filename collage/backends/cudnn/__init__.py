"""cuDNN's graph interface: convolutions with pointwise epilogues, attention, norms, softmax, pooling.

An operation graph names the operations and cuDNN's heuristics pick engines for it; the first three that
accept the graph are variants. Everything is channels-first as in ONNX: cuDNN converts where its engine
wants channels-last. The blob describes the graph; the plug-in builds it when the executable starts.
"""

from collage.backends.base import BackendStyle, PluginKernel
from collage.backends.cudnn.attention import AttentionRule, read_attention
from collage.backends.cudnn.operations import refusal, single_operation
from collage.backends.nvidia.chain import Chain, ChainRule, Chains, StepKind
from collage.backends.nvidia.libraries import CUDART, CUDNN
from collage.backends.nvidia.operands import Operands
from collage.backends.nvidia.product import attributes
from collage.backends.nvidia.toolchain import CudaBackend
from collage.errors import BackendError
from collage.frontend.model import Function
from collage.graph.index_set import IndexSet, index_set
from collage.rules.base import Singles
from collage.rules.rule import PartitionRule
from collage.rules.wrap import Union
from collage.runtime.blob import Header, Json, pack

VARIANTS = {"": 0, "engine-2": 1, "engine-3": 2}
POINTWISE = ("relu", "gelu_erf", "gelu_tanh", "sigmoid", "tanh", "swish", "elu", "softplus")


class CudnnBackend(CudaBackend):
    """Convolutions with epilogues, and cuDNN's other operations (style LIBRARY)."""

    name = "cudnn"
    style = BackendStyle.LIBRARY
    needs = (CUDNN, CUDART)
    kind = "cudnn"
    variants = tuple(VARIANTS)

    def unsupported(self, function: Function, node: int) -> str | None:
        return refusal(function, node)

    def rule(self, function: Function) -> PartitionRule:
        count = len(function.graph)
        supported = index_set(i for i in range(count) if refusal(function, i) is None)
        convolutions = index_set(n.index for n in function.graph.nodes if n.op == "Conv")
        chains = ChainRule(Chains(function), supported & convolutions, _accept)
        return Union((chains, Singles(supported), AttentionRule(function)))

    def compile(
        self, function: Function, nodes: IndexSet, threads: int, variant: str = ""
    ) -> PluginKernel:
        if variant not in VARIANTS:
            raise BackendError(f"cudnn has no variant {variant!r}")
        operands = Operands(function, nodes)
        graph = _describe(function, nodes, operands)
        header: Header = {**graph, "rank": VARIANTS[variant], "inputs": len(operands.inputs)}
        return PluginKernel(self.kind, pack(header, operands.constants))


def _accept(chain: Chain) -> str | None:
    for step in chain.work:
        if step.kind is StepKind.ACTIVATION and step.name not in POINTWISE:
            return f"cuDNN has no {step.name}"
    return None


def _describe(function: Function, nodes: IndexSet, operands: Operands) -> Header:
    """The operation graph of a region."""
    if nodes.bit_count() == 1 and function.graph.nodes[nodes.bit_length() - 1].op != "Conv":
        return single_operation(function, nodes.bit_length() - 1, operands)
    if attention := read_attention(function, nodes):
        return attention.header(operands)
    chain = Chains(function).read(nodes, ("Conv",))
    if reason := refusal(function, chain.anchor) or _accept(chain):
        raise BackendError(reason)
    steps: list[Json] = [
        {"kind": step.kind.value, "operand": operands.number(step.operand),
         "number": step.number, "name": step.name}
        for step in chain.work
    ]  # fmt: skip
    node = function.graph.nodes[chain.anchor]
    found = attributes(function, chain.anchor)
    spatial = len(function.graph.types[node.inputs[0]].shape) - 2
    return {
        "operation": "convolution", "steps": steps,
        "operands": [operands.number(name) for name in (*node.inputs, "")[:3]],
        "strides": list(found.get("strides", [1] * spatial)),  # type: ignore[call-overload]
        "dilations": list(found.get("dilations", [1] * spatial)),  # type: ignore[call-overload]
        "pads": list(found.get("pads", [0] * 2 * spatial)),  # type: ignore[call-overload]
        "group": int(found.get("group", 1)),  # type: ignore[call-overload]
    }  # fmt: skip
