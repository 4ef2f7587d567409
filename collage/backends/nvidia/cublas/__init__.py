"""cuBLASLt: matrix products with the epilogues of its interface, the heuristic's best few as variants.

cuBLASLt's heuristic proposes algorithms for a product, best first. The first four are variants; the
measurement decides. Its GELU is the tanh approximation, up to 5e-4 off the one with erf: in float32 that is
another function, in TF32 and in 16 bits it is within rounding. float32 is computed in float32, except in the
reduced variants: their factors are rounded to TF32.
"""

import math

from collage.backends.base import BackendStyle, BuildContext, PluginKernel
from collage.backends.nvidia.chain import PRODUCTS, Chain, ChainRule, Chains
from collage.backends.nvidia.epilogue import Epilogue, read_epilogue
from collage.backends.nvidia.libraries import CUBLASLT, CUDART
from collage.backends.nvidia.operands import Operands
from collage.backends.nvidia.product import Product, read_product
from collage.backends.nvidia.toolchain import TF32, CudaBackend, register_with_plugin, with_tf32
from collage.errors import BackendError
from collage.frontend.model import Function
from collage.graph.index_set import IndexSet
from collage.rules.rule import PartitionRule
from collage.runtime.blob import Header, pack

VARIANTS = {"": 0, "heuristic-2": 1, "heuristic-3": 2, "heuristic-4": 3}
"""Rank of the algorithm among the heuristic's proposals."""

WORKSPACE_BYTES = 32 << 20
EPILOGUES = {"": "none", "relu": "relu", "gelu_tanh": "gelu", "gelu_erf": "gelu"}


class CublasBackend(CudaBackend):
    """Matrix products with scale, bias, residual, and ReLU or GELU (style LIBRARY)."""

    name = "cublas"
    style = BackendStyle.LIBRARY
    needs = (CUBLASLT, CUDART)
    kind = "cublaslt"
    variants = tuple(VARIANTS)
    reduced = with_tf32(VARIANTS)

    def unsupported(self, function: Function, node: int) -> str | None:
        op = function.graph.nodes[node].op
        if op not in PRODUCTS:
            return f"cuBLAS computes matrix products; {op} at most as the epilogue of one"
        return _refusal(function, Chain(node, op))

    def rule(self, function: Function) -> PartitionRule:
        return ChainRule.of(function, self.supported_nodes(function), _refusal, self.reduced)

    def compile(
        self, function: Function, nodes: IndexSet, context: BuildContext, variant: str = ""
    ) -> PluginKernel:
        exact, rounds = self.read_variant(variant)
        register_with_plugin("cublaslt", CUBLASLT)
        register_with_plugin("cudart", CUDART)
        chain = Chains(function).read(nodes, PRODUCTS)
        product, epilogue = _describe(function, chain, rounds=rounds)
        operands = Operands(function, nodes)
        node = function.graph.nodes[chain.anchor]
        header: Header = {
            **_geometry(product), "rank": VARIANTS[exact],
            "workspace": WORKSPACE_BYTES, "alpha": repr(epilogue.alpha),
            "activation": EPILOGUES[epilogue.activation],
            "residual_stride": epilogue.residual_stride,
            "left": operands.number(node.inputs[0]), "right": operands.number(node.inputs[1]),
            "bias": operands.number(epilogue.bias), "residual": operands.number(epilogue.residual),
            "inputs": len(operands.inputs),
        }  # fmt: skip
        if rounds:
            header = {**header, "compute": TF32}
        blob = pack(header, operands.constants)
        return PluginKernel(self.kind, blob, libraries=frozenset({"cublaslt"}))


def _refusal(function: Function, chain: Chain, *, rounds: bool = False) -> str | None:
    try:
        _describe(function, chain, rounds=rounds)
    except BackendError as error:
        return str(error)
    return None


def _describe(function: Function, chain: Chain, *, rounds: bool) -> tuple[Product, Epilogue]:
    product = read_product(function, chain.anchor)
    epilogue = read_epilogue(function, product, chain)
    if epilogue.activation not in EPILOGUES:
        raise BackendError(f"cuBLAS has no {epilogue.activation} epilogue")
    if epilogue.activation == "gelu_erf" and product.dtype == "float32" and not rounds:
        raise BackendError("cuBLAS's GELU is the tanh approximation, 5e-4 off the one with erf")
    if not math.isfinite(epilogue.alpha):
        raise BackendError(f"the product is scaled by {epilogue.alpha}")
    return product, epilogue


def _geometry(product: Product) -> Header:
    return {
        "dtype": product.dtype, "m": product.m, "n": product.n, "k": product.k,
        "batch": product.batch, "left_stride": product.left_stride,
        "right_stride": product.right_stride, "left_transposed": int(product.left_transposed),
        "right_transposed": int(product.right_transposed),
    }  # fmt: skip
