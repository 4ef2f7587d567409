"""TVM's own kernels: a region becomes one fused TIR function with a rule-based schedule.

Work bound by memory traffic fuses into single passes (`schedule`). Without tuning, large dense products are
slower than in any library, so they are refused. The variants `tuned-...` apply the schedules of a search
(`common.tvm.tuned_schedules`).
"""

from math import prod

from collage.backends.base import Availability, Backend, BackendStyle, BuildContext, TirKernel
from collage.backends.common.tvm.availability import tvm_availability
from collage.errors import BackendError
from collage.frontend.index_checks import index_checks
from collage.frontend.model import Function
from collage.frontend.onnx_attributes import node_attributes
from collage.frontend.region import region_constants, region_relax
from collage.graph.index_set import IndexSet
from collage.graph.quantisation import is_quantised

CPU_SCHEDULE_REVISION = "4"
"""In every cost key: a new revision of the rules invalidates the costs of the old ones."""

HOPELESS_FLOP, AWKWARD_FLOP = 32_000_000, 1_000_000
"""Largest product without a tuned schedule; the same for a convolution without whole vectors in its rows."""
LANES = 16
PRODUCTS = frozenset({"Conv", "ConvTranspose", "MatMul", "Gemm"})


class TvmBackend(Backend):
    """Fused native kernels (style NATIVE: TVM's fusion rules list the candidates)."""

    name = "tvm"
    style = BackendStyle.NATIVE

    def availability(self) -> Availability:
        package = tvm_availability()
        if package.reason:
            return package
        return Availability("", {**package.libraries, "schedule": CPU_SCHEDULE_REVISION})

    def unsupported(self, function: Function, node: int) -> str | None:
        return _no_form(function, node) or _hopeless(function, node)

    def compile(
        self, function: Function, nodes: IndexSet, context: BuildContext, variant: str = ""
    ) -> TirKernel:
        from collage.backends.common.tvm.checked_indices import check_indices
        from collage.backends.common.tvm.lower import FUSED_SYMBOL, lower
        from collage.backends.common.tvm.tuned_schedules import (
            TUNED_PREFIX,
            apply_trace,
            read_trace,
        )
        from collage.backends.cpu.tvm.legalize import legalizers
        from collage.backends.cpu.tvm.schedule import schedule

        if variant not in self.variants and not variant.startswith(TUNED_PREFIX):
            raise BackendError(f"tvm has no variant {variant!r}")
        forms = legalizers(quantised=is_quantised(function.graph, nodes))
        lowered = lower(region_relax(function, nodes), forms)
        weights = tuple(function.weights[name] for name in region_constants(function, nodes))
        if variant.startswith(TUNED_PREFIX):
            module = apply_trace(lowered.function, read_trace(context.tuned_schedules_dir, variant))
        else:
            module = schedule(lowered.function, context.threads)
        module = check_indices(module, index_checks(function, nodes))
        return TirKernel(module, FUSED_SYMBOL, (*weights, *lowered.constants))


class TunableTvm(TvmBackend):
    """The backend with tuned schedules: large products are supported too."""

    def unsupported(self, function: Function, node: int) -> str | None:
        return _no_form(function, node)


def _no_form(function: Function, node: int) -> str | None:
    """Return why TVM has no kernel for the node, None where it has."""
    graph_node = function.graph.nodes[node]
    for value in (*graph_node.inputs, *graph_node.outputs):
        if value and value not in function.graph.types:
            return f"the shape of {value!r} depends on data"
    if function.relax_nodes[node] is None:
        return f"TVM has no {graph_node.op} with these operands"
    return None


def _hopeless(function: Function, node: int) -> str | None:
    """Return why a dense product needs a tuned schedule, None where it does not."""
    graph_node, types = function.graph.nodes[node], function.graph.types
    if graph_node.op not in PRODUCTS:
        return None
    reduced = (
        prod(types[graph_node.inputs[1]].shape[1:])
        if graph_node.op.startswith("Conv")
        else (types[graph_node.inputs[0]].shape[-1])
    )
    flop = 2 * prod(types[graph_node.outputs[0]].shape) * reduced
    awkward = graph_node.op.startswith("Conv") and not _has_whole_vectors(function, node)
    if flop <= (AWKWARD_FLOP if awkward else HOPELESS_FLOP):
        return None
    return f"a product of {flop / 1e6:.0f} MFLOP is far slower here without a tuned schedule"


def _has_whole_vectors(function: Function, node: int) -> bool:
    """Tell whether a convolution's rows are whole vectors, read contiguously."""
    graph_node, types = function.graph.nodes[node], function.graph.types
    strides = node_attributes(function, node).integers("strides", (1,))
    depthwise = types[graph_node.inputs[1]].shape[1] == 1
    return depthwise or (strides[-1] == 1 and types[graph_node.outputs[0]].shape[-1] % LANES == 0)
