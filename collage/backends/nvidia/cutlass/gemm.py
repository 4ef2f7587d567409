"""CUDA source of one matrix product: CUTLASS's templates behind one exported function.

The bias is the epilogue's summand with a leading dimension of 0 (the same row for all), so bias and residual
exclude each other. Alignments follow from the extents: 16 bytes where rows allow.
"""

from dataclasses import dataclass
from typing import ClassVar

from collage.backends.nvidia.chain import Chain, StepKind
from collage.backends.nvidia.compiler import CudaSource
from collage.backends.nvidia.cutlass.source import (
    FUNCTORS,
    Arithmetic,
    Tile,
    activation_refusal,
    cutlass_source,
)
from collage.backends.nvidia.epilogue import Epilogue, read_epilogue
from collage.backends.nvidia.operands import ABSENT, Operands
from collage.backends.nvidia.product import Product, read_product
from collage.errors import BackendError
from collage.frontend.model import Function


@dataclass(frozen=True)
class Gemm:
    """A product to instantiate; operands are numbers as in `nvidia.operands`.

    Attributes:
        product: extents and dtype.
        epilogue: the epilogue.
        tile: tile shape.
        left: number of the left operand.
        right: number of the right operand.
        bias: number of the bias, ABSENT for none.
        residual: number of the residual, ABSENT for none.
        arguments: number of inputs and constants.
        rounds: whether float32 is rounded to TF32 for tensor cores.
        scratch: bytes of device memory.
    """

    product: Product
    epilogue: Epilogue
    tile: Tile
    left: int
    right: int
    bias: int
    residual: int
    arguments: int
    rounds: bool = False
    scratch: ClassVar[int] = 0

    @property
    def arithmetic(self) -> Arithmetic:
        return Arithmetic(self.product.dtype, self.rounds)

    def source(self) -> CudaSource:
        """Generate the CUDA C++; its arguments are inputs, constants and result.

        Raises:
            BackendError: the CUTLASS headers are missing.
        """
        return cutlass_source(GEMM_TEMPLATE, _placeholders(self, self.product))


def gemm_refusal(function: Function, chain: Chain, *, rounds: bool = False) -> str | None:
    """Return why CUTLASS does not compute the chain, None where it does.

    Args:
        function: function of the chain.
        chain: a product and its epilogue.
        rounds: whether TF32 is allowed for float32.
    """
    try:
        product = read_product(function, chain.anchor)
        epilogue = read_epilogue(function, product, chain)
    except BackendError as error:
        return str(error)
    arithmetic, step = Arithmetic(product.dtype, rounds), chain.find(StepKind.ACTIVATION)
    number = step.number if step else 1.0
    if reason := activation_refusal(epilogue.activation, number, arithmetic):
        return reason
    if epilogue.bias and epilogue.residual:
        return "a bias and a residual: the epilogue has one summand"
    return _misaligned(product, arithmetic)


def read_gemm(
    function: Function, chain: Chain, operands: Operands, tile: Tile, *, rounds: bool = False
) -> Gemm:
    """Return the product to instantiate; operands are numbered in the order of the call."""
    product = read_product(function, chain.anchor)
    epilogue = read_epilogue(function, product, chain)
    node = function.graph.nodes[chain.anchor]
    names = (node.inputs[0], node.inputs[1], epilogue.bias, epilogue.residual)
    left, right, bias, residual = (operands.number(name) for name in names)
    count = len(operands.inputs) + len(operands.constants)
    return Gemm(
        product,
        epilogue,
        tile,
        left,
        right=right,
        bias=bias,
        residual=residual,
        arguments=count,
        rounds=rounds,
    )


def _placeholders(gemm: Gemm, product: Product) -> dict[str, str]:
    summand = gemm.residual if gemm.bias == ABSENT else gemm.bias
    has_row = gemm.bias != ABSENT
    return {
        **gemm.arithmetic.placeholders(gemm.tile), "header": "cutlass/gemm/device/gemm_universal.h",
        "left_layout": "ColumnMajor" if product.left_transposed else "RowMajor",
        "right_layout": "ColumnMajor" if product.right_transposed else "RowMajor",
        "epilogue": FUNCTORS[gemm.epilogue.activation],
        "m": str(product.m), "n": str(product.n), "k": str(product.k), "batch": str(product.batch),
        "alpha": repr(float(gemm.epilogue.alpha)) + "f",
        "beta": "0.0f" if summand == ABSENT else "1.0f",
        "left": str(gemm.left), "right": str(gemm.right),
        "summand": str(gemm.arguments if summand == ABSENT else summand),
        "output": str(gemm.arguments), "count": str(gemm.arguments + 1),
        "left_stride": str(product.left_stride), "right_stride": str(product.right_stride),
        "summand_stride": str(0 if has_row else gemm.epilogue.residual_stride),
        "left_lead": str(product.m if product.left_transposed else product.k),
        "right_lead": str(product.k if product.right_transposed else product.n),
        "summand_lead": "0" if has_row else str(product.n),
    }  # fmt: skip


def _misaligned(product: Product, arithmetic: Arithmetic) -> str | None:
    step = arithmetic.step
    rows = {
        product.m if product.left_transposed else product.k,
        product.k if product.right_transposed else product.n, product.n,
    }  # fmt: skip
    odd = sorted(extent for extent in rows if extent % step)
    return f"rows of {odd[0]}: {product.dtype} needs multiples of {step}" if odd else None


GEMM_TEMPLATE = """
namespace {

using Epilogue = cutlass::epilogue::thread::LinearCombinationGeneric<
    cutlass::epilogue::thread::@epilogue@, Element, @aligned@, float, float>;
using Gemm = cutlass::gemm::device::GemmUniversal<
    Element, cutlass::layout::@left_layout@, Element, cutlass::layout::@right_layout@, Element,
    cutlass::layout::RowMajor, float, cutlass::arch::@class@, cutlass::arch::Sm80,
    cutlass::gemm::GemmShape<@block@>, cutlass::gemm::GemmShape<@warp@>,
    cutlass::gemm::GemmShape<@instruction@>, Epilogue,
    cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<8>, @stages@, @aligned@, @aligned@>;

void Run(tvm::ffi::PackedArgs args, cudaStream_t stream) {
  auto* output = static_cast<Element*>(Data(args[@output@]));
  auto* summand = static_cast<Element*>(Data(args[@summand@]));
  Launch<Gemm>({@batch@ > 1 ? cutlass::gemm::GemmUniversalMode::kBatched
                            : cutlass::gemm::GemmUniversalMode::kGemm,
                {@m@, @n@, @k@}, @batch@, {@alpha@, @beta@}, Data(args[@left@]), Data(args[@right@]),
                summand, output, int64_t(@left_stride@), int64_t(@right_stride@),
                int64_t(@summand_stride@), int64_t(@m@) * @n@, @left_lead@, @right_lead@,
                @summand_lead@, @n@},
               stream);
}

}  // namespace
"""
