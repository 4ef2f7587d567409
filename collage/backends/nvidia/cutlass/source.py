"""Common parts of sources from CUTLASS's templates: tiles, includes, the exported function."""

from collections.abc import Mapping
from dataclasses import dataclass

from collage.backends.nvidia.architecture import architecture
from collage.backends.nvidia.compiler import CudaSource, cutlass_include
from collage.errors import BackendError

CUTLASS_SYMBOL = "collage_cutlass"
ELEMENTS = {"float32": "float", "float16": "cutlass::half_t", "bfloat16": "cutlass::bfloat16_t"}
BITS = {"float32": 32, "float16": 16, "bfloat16": 16}
FUNCTORS = {
    "": "Identity", "relu": "ReLu", "gelu_erf": "GELU", "gelu_tanh": "GELU_taylor",
    "sigmoid": "Sigmoid", "swish": "SiLu", "tanh": "Tanh",
}  # fmt: skip
"""CUTLASS's functors by activation; GELU uses erf, SiLU is x sigmoid(x)."""
APPROXIMATE = ("gelu_tanh", "tanh")
"""Activations with the hardware's tanh; it has 11 bits of precision."""


@dataclass(frozen=True)
class Tile:
    """Tile extents of a thread block and a warp, and the stages of the pipeline."""

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
"""Tiles for 16-bit types, by variant; float32 uses thinner ones (`fitting`)."""


@dataclass(frozen=True)
class Arithmetic:
    """Arithmetic of a product; `rounds` means float32 rounded to TF32 for tensor cores."""

    dtype: str
    rounds: bool = False

    @property
    def exact(self) -> bool:
        """Whether the product runs on CUDA cores."""
        return self.dtype == "float32" and not self.rounds

    @property
    def step(self) -> int:
        """Elements of one memory access; rows are multiples of it."""
        return 1 if self.exact else 128 // BITS[self.dtype]

    def fitting(self, tile: Tile) -> Tile:
        """Return the tile with the instruction's warps and steps."""
        m, n, k = tile.block
        if self.exact:
            return Tile((m, n, 8), (min(m // 2, 64), min(n // 2, 64), 8), 2)
        if not self.rounds:
            return tile
        rows, columns, _ = tile.warp  # as many bytes a step as in 16 bits
        return Tile((m, n, k // 2), (rows, columns, k // 2), tile.stages)

    def placeholders(self, tile: Tile) -> dict[str, str]:
        """Return the templates' values, by placeholder."""
        fitted = self.fitting(tile)
        return {
            "element": ELEMENTS[self.dtype],
            "class": "OpClassSimt" if self.exact else "OpClassTensorOp",
            "block": _shape(fitted.block), "warp": _shape(fitted.warp),
            "instruction": "1, 1, 1" if self.exact else f"16, 8, {256 // BITS[self.dtype]}",
            "stages": str(fitted.stages), "aligned": str(self.step),
        }  # fmt: skip


def activation_refusal(name: str, number: float, arithmetic: Arithmetic) -> str | None:
    """Return why CUTLASS has no such epilogue, None where it has.

    Args:
        name: name of the activation as in a chain, "" for none.
        number: factor of swish in x sigmoid(number x).
        arithmetic: arithmetic of the product.
    """
    if name not in FUNCTORS:
        return f"CUTLASS has no {name} epilogue"
    if name == "swish" and number != 1.0:
        return f"CUTLASS's swish has the factor 1, and this one {number:g}"
    if name in APPROXIMATE and arithmetic.exact:
        return f"CUTLASS's {name} has 11 bits, too few for float32"
    return None


def cutlass_source(template: str, values: Mapping[str, str]) -> CudaSource:
    """Generate CUDA C++ that exports `CUTLASS_SYMBOL`.

    Args:
        template: definition of a function `Run(tvm::ffi::PackedArgs, cudaStream_t)`.
        values: text for each placeholder `@name@`; `header` is CUTLASS's header, `count` the number of
            tensors, the result last.

    Raises:
        BackendError: the CUTLASS headers are missing.
    """
    include = cutlass_include()
    if include is None:
        raise BackendError("no CUTLASS headers")
    text = WHOLE.replace("@template@", template)
    for name, value in {**values, "symbol": CUTLASS_SYMBOL}.items():
        text = text.replace(f"@{name}@", value)
    tools = include.parent / "tools" / "util" / "include"
    includes = [f"-I{include}", *([f"-I{tools}"] if tools.is_dir() else []), *_ffi_flags()]
    return CudaSource(text, (f"-arch={architecture()}", "--expt-relaxed-constexpr", *includes))


def _shape(extents: tuple[int, int, int]) -> str:
    return ", ".join(map(str, extents))


def _ffi_flags() -> list[str]:
    import tvm_ffi.libinfo as libinfo

    folders = {libinfo.find_include_path(), libinfo.find_dlpack_include_path()}
    library = libinfo.find_libtvm_ffi()
    return [*(f"-I{folder}" for folder in sorted(folders)), "-Xlinker", library]


WHOLE = """\
#include <cuda_runtime.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#include "cutlass/cutlass.h"
#include "cutlass/epilogue/thread/activation.h"
#include "cutlass/epilogue/thread/linear_combination_generic.h"
#include "@header@"

namespace {

using Element = @element@;

void* Data(tvm::ffi::AnyView argument) {
  DLTensor* tensor = argument.cast<DLTensor*>();
  return static_cast<char*>(tensor->data) + tensor->byte_offset;
}

cudaStream_t Stream(tvm::ffi::AnyView argument) {
  DLDevice device = argument.cast<DLTensor*>()->device;
  return static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
}

void Check(cutlass::Status status, const char* where) {
  if (status != cutlass::Status::kSuccess) {
    TVM_FFI_THROW(RuntimeError) << "CUTLASS, " << where << ": " << cutlassGetStatusString(status);
  }
}

template <typename Operation>
void Launch(const typename Operation::Arguments& arguments, cudaStream_t stream) {
  Operation operation;
  Check(Operation::can_implement(arguments), "the extents");
  if (Operation::get_workspace_size(arguments) != 0) {
    TVM_FFI_THROW(RuntimeError) << "CUTLASS wants a workspace where no sum is split";
  }
  Check(operation.initialize(arguments, nullptr, stream), "the launch parameters");
  Check(operation(stream), "the launch");
}

}  // namespace
@template@
extern "C" __attribute__((visibility("default"))) int __tvm_ffi_@symbol@(
    void*, const TVMFFIAny* values, int32_t count, TVMFFIAny*) {
  TVM_FFI_SAFE_CALL_BEGIN();
  tvm::ffi::PackedArgs args(reinterpret_cast<const tvm::ffi::AnyView*>(values), count);
  if (args.size() != @count@) {
    TVM_FFI_THROW(ValueError) << "this kernel takes @count@ tensors, not " << args.size();
  }
  Run(args, Stream(args[@count@ - 1]));
  TVM_FFI_SAFE_CALL_END();
}
"""
