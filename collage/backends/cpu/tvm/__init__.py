"""TVM's own kernels: a region becomes one fused TIR function with a light schedule.

Everything bound by memory traffic fuses into single passes with a schedule by rules (`schedule`). Without
tuning, large dense products are slower than any library's, so they are refused with that reason. Where
a schedule was searched for, the variant `tuned-...` applies it (`tuned`).
"""

from importlib.metadata import PackageNotFoundError, version
from math import prod

from collage.backends.base import Availability, Backend, BackendStyle, TirKernel
from collage.errors import BackendError
from collage.frontend.model import Function
from collage.graph.index_set import IndexSet

SCHEDULE_REVISION = "2"
"""Part of every cost's key: schedules that change invalidate what was measured with the old ones."""

HOPELESS_FLOP, AWKWARD_FLOP = 32_000_000, 1_000_000
"""Largest product without a tuned schedule, and the largest convolution that has no whole vectors."""
LANES = 16
PRODUCTS = frozenset({"Conv", "ConvTranspose", "MatMul", "Gemm"})


class TvmBackend(Backend):
    """Fused native kernels (style NATIVE: TVM's fusion rules list the candidates)."""

    name = "tvm"
    style = BackendStyle.NATIVE

    def availability(self) -> Availability:
        try:
            return Availability(
                "", {"apache-tvm": version("apache-tvm"), "schedule": SCHEDULE_REVISION}
            )
        except PackageNotFoundError:
            return Availability("apache-tvm is not installed: pip install 'collage[compile]'")

    def unsupported(self, function: Function, node: int) -> str | None:
        return _no_form(function, node) or _hopeless(function, node)

    def compile(
        self, function: Function, nodes: IndexSet, threads: int, variant: str = ""
    ) -> TirKernel:
        from collage.backends.cpu.tvm.lower import SYMBOL, lower
        from collage.backends.cpu.tvm.schedule import schedule
        from collage.backends.cpu.tvm.tuned import PREFIX, apply_trace, read_recipe
        from collage.frontend.region import region_constants, region_relax

        if variant not in self.variants and not variant.startswith(PREFIX):
            raise BackendError(f"tvm has no variant {variant!r}")
        lowered = lower(region_relax(function, nodes))
        weights = tuple(function.weights[name] for name in region_constants(function, nodes))
        if variant.startswith(PREFIX):
            module = apply_trace(lowered.function, read_recipe(self.recipes, variant))
        else:
            module = schedule(lowered.function, threads)
        return TirKernel(module, SYMBOL, (*weights, *lowered.constants))


class TunableTvm(TvmBackend):
    """Says what the backend could do with a tuned schedule: large products too."""

    def unsupported(self, function: Function, node: int) -> str | None:
        return _no_form(function, node)


def _no_form(function: Function, node: int) -> str | None:
    """Return why TVM cannot run the node at all."""
    found = function.graph.nodes[node]
    for value in (*found.inputs, *found.outputs):
        if value and value not in function.graph.types:
            return f"the shape of {value!r} depends on data"
    if function.relax_nodes[node] is None:
        return f"TVM has no {found.op} with these operands"
    return None


def _hopeless(function: Function, node: int) -> str | None:
    """Return why a dense product needs tuning."""
    found, types = function.graph.nodes[node], function.graph.types
    if found.op not in PRODUCTS:
        return None
    reduced = (
        prod(types[found.inputs[1]].shape[1:])
        if found.op.startswith("Conv")
        else (types[found.inputs[0]].shape[-1])
    )
    flop = 2 * prod(types[found.outputs[0]].shape) * reduced
    awkward = found.op.startswith("Conv") and not _has_whole_vectors(function, node)
    if flop <= (AWKWARD_FLOP if awkward else HOPELESS_FLOP):
        return None
    return f"a product of {flop / 1e6:.0f} MFLOP is far slower here without a tuned schedule"


def _has_whole_vectors(function: Function, node: int) -> bool:
    """Tell whether a convolution's rows are vectors: contiguous reads, a multiple of their length."""
    found, types = function.graph.nodes[node], function.graph.types
    strides = [one.ints for one in function.onnx_nodes[node].attribute if one.name == "strides"]
    depthwise = types[found.inputs[1]].shape[1] == 1
    contiguous = all(values[-1] == 1 for values in strides)
    return depthwise or (contiguous and types[found.outputs[0]].shape[-1] % LANES == 0)
