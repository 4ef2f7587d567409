"""CUTLASS: products and convolutions with an epilogue, instantiated per region and compiled by nvcc.

Each tile shape is a variant; the measurement decides. Workers compile the generated sources in parallel,
each source once (`nvidia.compiler`). float32 runs on CUDA cores in full precision. 16-bit types run on
tensor cores with float32 sums, and so does float32 in the reduced variants, rounded to TF32.
"""

from collections.abc import Sequence

import numpy as np

from collage.backends.base import Availability, BackendStyle, BuildContext, CudaKernel
from collage.backends.nvidia.architecture import architecture_availability
from collage.backends.nvidia.chain import PRODUCTS, Chain, ChainRule, Chains
from collage.backends.nvidia.compiler import (
    compile_cuda,
    cutlass_availability,
    nvcc_availability,
)
from collage.backends.nvidia.cutlass.convolution import (
    CutlassConvolution,
    convolution_refusal,
    read_convolution,
)
from collage.backends.nvidia.cutlass.gemm import Gemm, gemm_refusal, read_gemm
from collage.backends.nvidia.cutlass.source import CUTLASS_SYMBOL, TILES
from collage.backends.nvidia.libraries import CUDART
from collage.backends.nvidia.operands import Operands
from collage.backends.nvidia.toolchain import CudaBackend, with_tf32
from collage.errors import BackendError
from collage.frontend.model import Function
from collage.graph.index_set import IndexSet
from collage.options import Options
from collage.rules.rule import PartitionRule

SHARED = ("-shared", "-Xcompiler", "-fPIC")
ANCHORS = (*PRODUCTS, "Conv")


class CutlassBackend(CudaBackend):
    """Matrix products and convolutions from templates (style LIBRARY)."""

    name = "cutlass"
    style = BackendStyle.LIBRARY
    needs = (CUDART,)
    variants = tuple(TILES)
    reduced = with_tf32(TILES)

    def compilers(self) -> Sequence[Availability]:
        return (nvcc_availability(), cutlass_availability(), architecture_availability())

    def unsupported(self, function: Function, node: int) -> str | None:
        op = function.graph.nodes[node].op
        if op not in ANCHORS:
            return f"CUTLASS has products and convolutions; {op} at most as the epilogue of one"
        return _refusal(function, Chain(node, op))

    def rule(self, function: Function) -> PartitionRule:
        return ChainRule.of(function, self.supported_nodes(function), _refusal, self.reduced)

    def compile(
        self, function: Function, nodes: IndexSet, context: BuildContext, variant: str = ""
    ) -> CudaKernel:
        template, constants = self.describe(function, nodes, variant)
        file = compile_cuda(template.source(), ".so", SHARED, Options().store_dir / "nvcc")
        return CudaKernel(file, CUTLASS_SYMBOL, constants, template.scratch)

    def describe(
        self, function: Function, nodes: IndexSet, variant: str
    ) -> tuple[Gemm | CutlassConvolution, tuple[np.ndarray, ...]]:
        """Return the template instance of a region and the constants of its kernel.

        Raises:
            BackendError: CUTLASS does not compute the region.
        """
        exact, rounds = self.read_variant(variant)
        chain = Chains(function).read(nodes, ANCHORS)
        if reason := _refusal(function, chain, rounds=rounds):
            raise BackendError(reason)
        operands = Operands(function, nodes)
        tile = TILES[exact]
        if chain.op == "Conv":
            convolution = read_convolution(function, chain, operands, tile, rounds=rounds)
            return convolution, convolution.constants
        gemm = read_gemm(function, chain, operands, tile, rounds=rounds)
        return gemm, tuple(operands.constants)


def _refusal(function: Function, chain: Chain, *, rounds: bool = False) -> str | None:
    refusal = convolution_refusal if chain.op == "Conv" else gemm_refusal
    return refusal(function, chain, rounds=rounds)
