"""The source of one matrix product: CUTLASS's templates filled in, behind one exported function.

The bias is the epilogue's summand read with a leading dimension of 0 (the same row again and again), so
bias and residual exclude each other here. Alignments follow from the extents: 16 bytes where rows allow.
"""

from dataclasses import dataclass

from collage.backends.nvidia.architecture import architecture
from collage.backends.nvidia.chain import Chain
from collage.backends.nvidia.compiler import CudaSource, cutlass_include
from collage.backends.nvidia.epilogue import Epilogue, read_epilogue
from collage.backends.nvidia.operands import ABSENT, Operands
from collage.backends.nvidia.product import Product, read_product
from collage.errors import BackendError
from collage.frontend.model import Function

SYMBOL = "collage_cutlass_gemm"
ELEMENTS = {"float32": "float", "float16": "cutlass::half_t", "bfloat16": "cutlass::bfloat16_t"}
BITS = {"float32": 32, "float16": 16, "bfloat16": 16}
ACTIVATIONS = {
    "": "Identity", "relu": "ReLu", "gelu_erf": "GELU", "gelu_tanh": "GELU_taylor",
    "sigmoid": "Sigmoid", "swish": "SiLu", "tanh": "Tanh",
}  # fmt: skip
"""CUTLASS's functor of each activation; GELU is the one with erf."""
APPROXIMATE = ("gelu_tanh", "tanh")
"""Use the processor's own tanh, which is right to 11 bits."""


@dataclass(frozen=True)
class Tile:
    """Extents of a thread block's and a warp's tile, and the stages of its pipeline."""

    block: tuple[int, int, int]
    warp: tuple[int, int, int]
    stages: int


TILES = {
    "": Tile((128, 128, 32), (64, 64, 32), 4),
    "64x64": Tile((64, 64, 32), (32, 32, 32), 6),
    "128x64": Tile((128, 64, 32), (64, 32, 32), 4),
    "64x128": Tile((64, 128, 32), (32, 64, 32), 4),
    "256x128": Tile((256, 128, 32), (64, 64, 32), 3),
}
"""By variant; those of 16-bit types, of which float32 takes thinner ones (`_fitting`)."""


@dataclass(frozen=True)
class Gemm:
    """A product to instantiate: numbers of operands as in `nvidia.operands`."""

    product: Product
    epilogue: Epilogue
    tile: Tile
    left: int
    right: int
    bias: int
    residual: int
    arguments: int
    rounds: bool = False
    """float32 is rounded to TF32 and multiplied on tensor cores."""

    @property
    def exact(self) -> bool:
        """It is computed on the ordinary cores."""
        return self.product.dtype == "float32" and not self.rounds


def gemm_refusal(function: Function, chain: Chain, *, rounds: bool = False) -> str | None:
    """Return why CUTLASS does not compute the chain, or None when it does.

    Args:
        function: of the chain.
        chain: a product and what follows it.
        rounds: float32 may be rounded to TF32.
    """
    try:
        product = read_product(function, chain.anchor)
        epilogue = read_epilogue(function, product, chain)
    except BackendError as error:
        return str(error)
    if epilogue.activation not in ACTIVATIONS:
        return f"CUTLASS has no {epilogue.activation} epilogue"
    if epilogue.activation in APPROXIMATE and product.dtype == "float32" and not rounds:
        return f"CUTLASS's {epilogue.activation} has 11 bits, too few for float32"
    if epilogue.bias and epilogue.residual:
        return "a bias and a residual: the epilogue has one summand"
    return None if product.dtype == "float32" and not rounds else _misaligned(product)


def read_gemm(
    function: Function, chain: Chain, operands: Operands, tile: Tile, *, rounds: bool = False
) -> Gemm:
    """Return what to instantiate; every operand gets its number in the order of the call."""
    product = read_product(function, chain.anchor)
    epilogue = read_epilogue(function, product, chain)
    node = function.graph.nodes[chain.anchor]
    names = (node.inputs[0], node.inputs[1], epilogue.bias, epilogue.residual)
    left, right, bias, residual = (operands.number(name) for name in names)
    count = len(operands.inputs) + len(operands.constants)
    return Gemm(product, epilogue, tile, left, right, bias, residual, count, rounds)


def gemm_source(gemm: Gemm) -> CudaSource:
    """Generate the CUDA C++ of a product.

    Raises:
        BackendError: there are no CUTLASS headers.
    """
    include = cutlass_include()
    if include is None:
        raise BackendError("no CUTLASS headers")
    product = gemm.product
    text = TEMPLATE
    for name, value in _places(gemm, product).items():
        text = text.replace(f"@{name}@", value)
    tools = include.parent / "tools" / "util" / "include"
    includes = [f"-I{include}", *([f"-I{tools}"] if tools.is_dir() else []), *_ffi_flags()]
    flags = [f"-arch={architecture()}", "--expt-relaxed-constexpr", *includes]
    return CudaSource(text, tuple(flags))


def _places(gemm: Gemm, product: Product) -> dict[str, str]:
    element, bits = ELEMENTS[product.dtype], BITS[product.dtype]
    exact, tile = gemm.exact, _fitting(gemm)
    aligned = 1 if exact else 128 // bits
    summand = gemm.residual if gemm.bias == ABSENT else gemm.bias
    has_row = gemm.bias != ABSENT
    return {
        "element": element,
        "left_layout": "ColumnMajor" if product.left_transposed else "RowMajor",
        "right_layout": "ColumnMajor" if product.right_transposed else "RowMajor",
        "class": "OpClassSimt" if exact else "OpClassTensorOp",
        "block": _shape(tile.block), "warp": _shape(tile.warp),
        "instruction": "1, 1, 1" if exact else f"16, 8, {256 // bits}",
        "stages": str(tile.stages), "aligned": str(aligned),
        "epilogue": ACTIVATIONS[gemm.epilogue.activation],
        "store": "1" if exact else str(128 // bits),
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
        "symbol": SYMBOL,
    }  # fmt: skip


def _fitting(gemm: Gemm) -> Tile:
    """The tile for what multiplies: warps and steps that its instruction has."""
    m, n, k = gemm.tile.block
    if gemm.exact:
        return Tile((min(m, 128), min(n, 128), 8), (min(m, 128) // 2, min(n, 128) // 2, 8), 2)
    if not gemm.rounds:
        return gemm.tile
    rows, columns, _ = gemm.tile.warp  # as many bytes a step as in 16 bits
    return Tile((m, n, k // 2), (rows, columns, k // 2), gemm.tile.stages)


def _shape(extents: tuple[int, int, int]) -> str:
    return ", ".join(map(str, extents))


def _misaligned(product: Product) -> str | None:
    step = 128 // BITS[product.dtype]
    rows = {
        product.m if product.left_transposed else product.k,
        product.k if product.right_transposed else product.n, product.n,
    }  # fmt: skip
    odd = sorted(extent for extent in rows if extent % step)
    return f"rows of {odd[0]}: {product.dtype} needs multiples of {step}" if odd else None


def _ffi_flags() -> list[str]:
    import tvm_ffi.libinfo as libinfo

    folders = {libinfo.find_include_path(), libinfo.find_dlpack_include_path()}
    library = libinfo.find_libtvm_ffi()
    return [*(f"-I{one}" for one in sorted(folders)), "-Xlinker", library]


TEMPLATE = """\
#include <cuda_runtime.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#include "cutlass/cutlass.h"
#include "cutlass/epilogue/thread/activation.h"
#include "cutlass/epilogue/thread/linear_combination_generic.h"
#include "cutlass/gemm/device/gemm_universal.h"

namespace {

using Element = @element@;
using Epilogue = cutlass::epilogue::thread::LinearCombinationGeneric<
    cutlass::epilogue::thread::@epilogue@, Element, @store@, float, float>;
using Gemm = cutlass::gemm::device::GemmUniversal<
    Element, cutlass::layout::@left_layout@, Element, cutlass::layout::@right_layout@, Element,
    cutlass::layout::RowMajor, float, cutlass::arch::@class@, cutlass::arch::Sm80,
    cutlass::gemm::GemmShape<@block@>, cutlass::gemm::GemmShape<@warp@>,
    cutlass::gemm::GemmShape<@instruction@>, Epilogue,
    cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<8>, @stages@, @aligned@, @aligned@>;

void Check(cutlass::Status status, const char* where) {
  if (status != cutlass::Status::kSuccess) {
    TVM_FFI_THROW(RuntimeError) << "CUTLASS, " << where << ": " << cutlassGetStatusString(status);
  }
}

void* Data(tvm::ffi::AnyView argument) {
  DLTensor* tensor = argument.cast<DLTensor*>();
  return static_cast<char*>(tensor->data) + tensor->byte_offset;
}

void Run(tvm::ffi::PackedArgs args, tvm::ffi::Any*) {
  if (args.size() != @count@) {
    TVM_FFI_THROW(ValueError) << "this kernel takes @count@ tensors, not " << args.size();
  }
  DLDevice device = args[@output@].cast<DLTensor*>()->device;
  auto stream =
      static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
  auto* output = static_cast<Element*>(Data(args[@output@]));
  auto* summand = static_cast<Element*>(Data(args[@summand@]));
  typename Gemm::Arguments arguments(
      @batch@ > 1 ? cutlass::gemm::GemmUniversalMode::kBatched
                  : cutlass::gemm::GemmUniversalMode::kGemm,
      {@m@, @n@, @k@}, @batch@, {@alpha@, @beta@}, Data(args[@left@]), Data(args[@right@]), summand,
      output, int64_t(@left_stride@), int64_t(@right_stride@), int64_t(@summand_stride@),
      int64_t(@m@) * @n@, @left_lead@, @right_lead@, @summand_lead@, @n@);
  Gemm gemm;
  Check(Gemm::can_implement(arguments), "the extents");
  if (Gemm::get_workspace_size(arguments) != 0) {
    TVM_FFI_THROW(RuntimeError) << "CUTLASS wants a workspace for a product without split sums";
  }
  Check(gemm.initialize(arguments, nullptr, stream), "the launch parameters");
  Check(gemm(stream), "the launch");
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int __tvm_ffi_@symbol@(
    void*, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  TVM_FFI_SAFE_CALL_BEGIN();
  Run(tvm::ffi::PackedArgs(reinterpret_cast<const tvm::ffi::AnyView*>(args), count),
      reinterpret_cast<tvm::ffi::Any*>(result));
  TVM_FFI_SAFE_CALL_END();
}
"""
