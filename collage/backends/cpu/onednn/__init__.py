"""oneDNN on the CPU: single primitives with post-operations, and regions in blocked layouts.

A region becomes a program of primitives (`program.py`) which the plug-in's kernel of kind "onednn"
runs. What a node needs is said by one translator per operator (`translate.py`); a translator that
cannot says why, and that is the reason of `unsupported`. Everything computes in float32, but for the
reduced variant, in which products multiply bfloat16, sum in float32, and hand bfloat16 on inside a region.

The variants differ in how convolutions lay out activations: as oneDNN likes best (channels innermost
with AVX-512), in blocks of channels, or row-major. The best layout for the arithmetic may cost more
at the region's borders than it gains: on one Zen 5 core a 3x3 depthwise convolution of 96 channels
takes 668, 280 and 3251 us, one of 1x1 from 96 to 24 channels 210, 149 and 72 us, and the whole of
ResNet-18 16.1, 20.1 and 22.0 ms.
"""

import functools
from types import MappingProxyType

from collage.backends.base import Availability, Backend, BackendStyle, PluginKernel
from collage.errors import BackendError
from collage.frontend.model import Function
from collage.graph.index_set import IndexSet, index_set
from collage.rules.rule import PartitionRule
from collage.runtime.plugin import library_reason, library_version, load_plugin

LIBRARY = "onednn"
KIND = "onednn"
LAYOUTS = {"": "any", "blocked": "blocked", "plain": "plain"}


class OneDnnBackend(Backend):
    """Regions as lists of oneDNN primitives."""

    name = "onednn"
    style = BackendStyle.LIBRARY
    variants = tuple(LAYOUTS)
    reduced = MappingProxyType({"bf16": "bf16"})

    def availability(self) -> Availability:
        if reason := library_reason(LIBRARY) or _plugin_reason():
            return Availability(reason)
        return Availability("", {LIBRARY: library_version(LIBRARY)})

    def unsupported(self, function: Function, node: int) -> str | None:
        from collage.backends.cpu.onednn.translate import translate
        from collage.backends.cpu.onednn.view import NodeView

        try:
            translate(NodeView(function, node))
        except BackendError as error:
            return str(error)
        return None

    def rule(self, function: Function) -> PartitionRule:
        """Return patterns, single nodes, and regions that keep blocked layouts inside."""
        from collage.backends.cpu.onednn.activations import all_activations
        from collage.backends.cpu.onednn.patterns import onednn_rule

        count = len(function.graph)
        supported = index_set(i for i in range(count) if self.unsupported(function, i) is None)
        return onednn_rule(function, supported, all_activations(function))

    def compile(
        self, function: Function, nodes: IndexSet, threads: int, variant: str = ""
    ) -> PluginKernel:
        from collage.backends.cpu.onednn.activations import all_activations
        from collage.backends.cpu.onednn.fuse import plan_steps
        from collage.backends.cpu.onednn.program import ProgramBuilder
        from collage.frontend.region import region_values
        from collage.runtime.blob import Header

        if variant not in (*LAYOUTS, *self.reduced):
            raise BackendError(f"onednn has no variant {variant!r}")
        inputs, outputs = region_values(function, nodes)
        shapes = {name: function.graph.types[name].shape or (1,) for name in (*inputs, *outputs)}
        program = ProgramBuilder()
        for name in inputs:
            program.declare(name, shapes[name])
        activations = all_activations(function) if nodes.bit_count() > 1 else []
        for draft in plan_steps(function, nodes, outputs, activations):
            program.add(draft)
        results = [(name, shapes[name]) for name in outputs]
        header: Header = {"threads": threads, "layout": LAYOUTS.get(variant, "any")}
        if variant in self.reduced:
            header = {**header, "products": self.reduced[variant]}
        return PluginKernel(KIND, program.blob(inputs, results, header))


@functools.cache
def _plugin_reason() -> str:
    """Why the plug-in cannot run these kernels: it may have been built without oneDNN's headers."""
    import tvm_ffi

    from collage.runtime.blob import pack

    try:
        load_plugin()
        tvm_ffi.get_global_func("collage.create_module")(KIND, "probe", pack({}, []))
    except (BackendError, ValueError) as error:
        return str(error)
    return ""
