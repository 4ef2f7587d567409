"""numpy arrays as inputs and outputs of an executable, and in files, with bfloat16.

numpy has no bfloat16. Arrays of `ml_dtypes` have it, but numpy cannot export them as DLPack, and writes them
to `.npy` files as two bytes of unknown type ("V2"). This module handles both: V2 is read as bfloat16, the
only such type of a model's inputs and outputs, and on the way to DLPack the array is viewed as integers
and the tensor's type is corrected. Nothing is copied.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from collage.errors import InputError

ALIGNMENT = 64
"""Alignment of tensors in bytes, as assumed by compiled kernels."""
BFLOAT16 = "bfloat16"
UNKNOWN = np.dtype("V2")


def numpy_dtype(name: str) -> np.dtype:
    """Return numpy's dtype by name.

    Raises:
        InputError: it is bfloat16, and `ml_dtypes` is not installed.
    """
    if name != BFLOAT16:
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        raise InputError(
            "bfloat16 arrays are those of ml_dtypes: run `pip install 'ml_dtypes>=0.5'`, or pass "
            "tensors that have __dlpack__"
        ) from None
    dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return dtype


def restored(array: np.ndarray) -> np.ndarray:
    """Return an array from a file with its original type."""
    return array.view(numpy_dtype(BFLOAT16)) if array.dtype == UNKNOWN else array


def load_arrays(file: Path | BinaryIO) -> dict[str, np.ndarray]:
    """Read all arrays of an `.npz` file. Raises OSError or ValueError for any other file."""
    with np.load(file, allow_pickle=False) as stored:
        return {name: restored(stored[name]) for name in stored.files}


def save_arrays(file: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays as `load_arrays` reads them."""
    np.savez(file, **arrays)  # type: ignore[arg-type]


def aligned_empty(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """Return a contiguous array aligned to `ALIGNMENT`."""
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)


def aligned_copy(value: np.ndarray) -> np.ndarray:
    """Return a contiguous copy aligned to `ALIGNMENT`."""
    copy = aligned_empty(value.shape, value.dtype)
    copy[...] = value
    return copy


def as_tensor(array: np.ndarray) -> Any:
    """Return a tensor of tvm-ffi with the memory of a contiguous, writable array."""
    import tvm_ffi

    if array.dtype.name != BFLOAT16:
        return tvm_ffi.from_dlpack(array)
    return _viewed(tvm_ffi.from_dlpack(array.view(np.uint16)), BFLOAT16)


def as_array(tensor: Any) -> np.ndarray:
    """Return an array with the memory of a tensor on the host."""
    if str(tensor.dtype) != BFLOAT16:
        return np.from_dlpack(tensor)
    return np.from_dlpack(_viewed(tensor, "uint16")).view(numpy_dtype(BFLOAT16))


def _viewed(tensor: Any, dtype: str) -> Any:
    import tvm_ffi

    view = tvm_ffi.get_global_func("runtime.TVMTensorCreateView")
    return view(tensor, tvm_ffi.Shape(tensor.shape), tvm_ffi.dtype(dtype), 0)
