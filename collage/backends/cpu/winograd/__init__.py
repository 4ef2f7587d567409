"""Winograd convolutions of the plug-in: 3x3, stride 1, fp32, with an elementwise epilogue.

Libraries run direct fp32 convolutions at the core's peak, so only fewer multiplications are faster: 2.25
times fewer in tiles of 2x2 outputs (variant f2), 4 times fewer in tiles of 4x4 (f4). Larger tiles waste
more at the border of small images and have larger transformed weights. With few tiles per weight, reading
the weights of f4 takes longer than the arithmetic: the variant f4-small stores the original weights and
transforms them in every run. Each variant is a candidate; the measurement decides. See
native/kernels/winograd.h.
"""

from dataclasses import dataclass

import numpy as np

from collage.backends.base import Availability, Backend, BackendStyle, BuildContext, PluginKernel
from collage.backends.common.native_kernels import by_panels, kernels_availability
from collage.backends.cpu.winograd.convolution import WinogradConvolution, describe, refusal
from collage.backends.cpu.winograd.patterns import winograd_rule
from collage.backends.cpu.winograd.weights import transformed_weights
from collage.errors import BackendError
from collage.frontend.model import Function
from collage.frontend.region import region_values
from collage.graph.index_set import IndexSet
from collage.rules.rule import PartitionRule
from collage.runtime.blob import Header, pack

WINOGRAD_REVISION = "2"
"""In every cost key: a new revision of the kernels invalidates the costs of the old ones."""


@dataclass(frozen=True, slots=True)
class Variant:
    """Outputs per side of a tile, and whether the weights are transformed at compilation."""

    tile: int
    transformed: bool


VARIANTS = {"f4": Variant(4, True), "f4-small": Variant(4, False), "f2": Variant(2, True)}
"""F(2, 3) with its weights transformed in every run was never the fastest, so it is not offered."""


class WinogradBackend(Backend):
    """3x3 convolutions by Winograd's algorithm (style LIBRARY: a table of patterns)."""

    name = "winograd"
    style = BackendStyle.LIBRARY
    algorithmic_savings = True
    spreads_nan = True
    variants = tuple(VARIANTS)

    def availability(self) -> Availability:
        return kernels_availability(self.name, WINOGRAD_REVISION)

    def unsupported(self, function: Function, node: int) -> str | None:
        return refusal(function, node)

    def rule(self, function: Function) -> PartitionRule:
        return winograd_rule(function)

    def compile(
        self, function: Function, nodes: IndexSet, context: BuildContext, variant: str = ""
    ) -> PluginKernel:
        if variant not in VARIANTS:
            raise BackendError(f"winograd has no variant {variant!r}")
        convolution, algorithm = describe(function, nodes), VARIANTS[variant]
        inputs, _ = region_values(function, nodes)
        header = {
            **_geometry(function, convolution), "threads": context.threads, "tile": algorithm.tile,
            "transformed": int(algorithm.transformed), "inputs": len(inputs),
            "residual": inputs.index(convolution.residual) if convolution.residual else -1,
            "first": int(convolution.first.kind), "last": int(convolution.last.kind),
        }  # fmt: skip
        blob = pack(header, _tensors(function, convolution, algorithm))
        return PluginKernel("winograd", blob, libraries=frozenset())


def _geometry(function: Function, convolution: WinogradConvolution) -> Header:
    types = function.graph.types
    batch, channels_in, height, width = types[convolution.node.inputs[0]].shape
    _, channels_out, out_height, out_width = types[convolution.node.outputs[0]].shape
    return {
        "batch": batch, "channels_in": channels_in, "channels_out": channels_out,
        "height": height, "width": width, "out_height": out_height, "out_width": out_width,
        "pad_top": convolution.pad_top, "pad_left": convolution.pad_left,
    }  # fmt: skip


def _tensors(
    function: Function, convolution: WinogradConvolution, variant: Variant
) -> list[np.ndarray]:
    weights = function.weights[convolution.node.inputs[1]]
    name = convolution.node.inputs[2] if len(convolution.node.inputs) > 2 else ""
    bias = function.weights[name] if name else np.zeros(weights.shape[0], np.float32)
    parameters = (convolution.first.a, convolution.first.b, convolution.last.a, convolution.last.b)
    packed = (
        transformed_weights(weights, variant.tile) if variant.transformed else by_panels(weights)
    )
    return [packed, bias, np.array(parameters, np.float32)]
