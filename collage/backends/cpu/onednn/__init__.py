"""oneDNN on the CPU: single primitives with post-ops, and regions in blocked layouts.

A region becomes a program of primitives (`common.primitives`), run by the plug-in's kernel of kind "onednn".
Computation is in float32, except in the reduced variant: there products multiply bfloat16, sum in float32,
and pass bfloat16 on inside a region.

The variants differ in the layout of activations in convolutions: oneDNN's preferred one (channels innermost
with AVX-512), blocks of channels, or row-major. The best layout for the arithmetic may cost more at the
region's borders than it gains: on one Zen 5 core a 3x3 depthwise convolution of 96 channels takes 668, 280
and 3251 us, a 1x1 convolution from 96 to 24 channels 210, 149 and 72 us, and all of ResNet-18 16.1, 20.1 and
22.0 ms.
"""

import functools
from types import MappingProxyType

from collage.backends.base import Availability, Backend, BackendStyle, BuildContext, PluginKernel
from collage.backends.common.primitives.composite_activations import all_activations
from collage.backends.common.primitives.fusion import region_primitives
from collage.backends.common.primitives.node_view import NodeView
from collage.backends.common.primitives.translate import translate
from collage.backends.cpu.onednn.patterns import onednn_rule
from collage.backends.cpu.onednn.program import ProgramBuilder
from collage.errors import BackendError
from collage.frontend.model import Function
from collage.frontend.region import region_values
from collage.graph.index_set import IndexSet
from collage.rules.rule import PartitionRule
from collage.runtime.blob import Header, pack
from collage.runtime.plugin import library_reason, library_version, load_plugin

ONEDNN = "onednn"
KERNEL_KIND = "onednn"
"""Kind of the plug-in's kernel."""
LAYOUTS = {"": "any", "blocked": "blocked", "plain": "plain"}


class OneDnnBackend(Backend):
    """Regions as programs of oneDNN primitives (style LIBRARY)."""

    name = "onednn"
    style = BackendStyle.LIBRARY
    variants = tuple(LAYOUTS)
    reduced = MappingProxyType({"bf16": "bf16"})

    def availability(self) -> Availability:
        if reason := library_reason(ONEDNN) or _plugin_reason():
            return Availability(reason)
        return Availability("", {ONEDNN: library_version(ONEDNN)})

    def unsupported(self, function: Function, node: int) -> str | None:
        try:
            translate(NodeView(function, node))
        except BackendError as error:
            return str(error)
        return None

    def rule(self, function: Function) -> PartitionRule:
        """Return patterns, single nodes, and regions with blocked layouts inside."""
        return onednn_rule(function, self.supported_nodes(function), all_activations(function))

    def compile(
        self, function: Function, nodes: IndexSet, context: BuildContext, variant: str = ""
    ) -> PluginKernel:
        if variant not in (*LAYOUTS, *self.reduced):
            raise BackendError(f"onednn has no variant {variant!r}")
        inputs, outputs = region_values(function, nodes)
        shapes = {name: function.graph.types[name].shape or (1,) for name in (*inputs, *outputs)}
        program = ProgramBuilder()
        for name in inputs:
            program.declare(name, shapes[name])
        activations = all_activations(function) if nodes.bit_count() > 1 else []
        for primitive in region_primitives(function, nodes, outputs, activations):
            program.add(primitive)
        results = [(name, shapes[name]) for name in outputs]
        header: Header = {"threads": context.threads, "layout": LAYOUTS.get(variant, "any")}
        if variant in self.reduced:
            header = {**header, "products": self.reduced[variant]}
        blob = program.blob(inputs, results, header)
        return PluginKernel(KERNEL_KIND, blob, libraries=frozenset({"onednn"}))


@functools.cache
def _plugin_reason() -> str:
    """Return why the plug-in has no such kernels (built without oneDNN's headers), "" where it has."""
    import tvm_ffi

    try:
        load_plugin()
        tvm_ffi.get_global_func("collage.create_module")(KERNEL_KIND, "probe", pack({}, []))
    except (BackendError, ValueError) as error:
        return str(error)
    return ""
