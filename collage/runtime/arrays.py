"""numpy arrays at the borders of an executable, in files too, bfloat16 included.

numpy has no bfloat16: its arrays are those of `ml_dtypes`, which numpy cannot hand on as DLPack and writes
into `.npy` files as two bytes without a meaning ("V2"). Both are said here once: such bytes are
bfloat16, the only type of that kind that a model exchanges, and on the way to DLPack they travel as
integers whose type is then set right. Nothing is copied.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from collage.errors import InputError

ALIGNMENT = 64
"""Bytes at whose multiples tensors begin, as kernels were told when they were compiled."""
BFLOAT16 = "bfloat16"
UNKNOWN = np.dtype("V2")


def numpy_dtype(name: str) -> np.dtype:
    """Return numpy's dtype of that name.

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
    return np.dtype(ml_dtypes.bfloat16)


def restored(array: np.ndarray) -> np.ndarray:
    """Return an array that was read from a file, with the type that it had."""
    return array.view(numpy_dtype(BFLOAT16)) if array.dtype == UNKNOWN else array


def load_arrays(file: Path | BinaryIO) -> dict[str, np.ndarray]:
    """Read all arrays of an `.npz` file. Raises OSError or ValueError when it is none."""
    with np.load(file, allow_pickle=False) as stored:
        return {name: restored(stored[name]) for name in stored.files}


def save_arrays(file: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays as `load_arrays` reads them."""
    np.savez(file, **arrays)  # type: ignore[arg-type]


def aligned_empty(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """Make a contiguous array that begins at a multiple of `ALIGNMENT`."""
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)


def aligned_copy(value: np.ndarray) -> np.ndarray:
    """Copy to contiguous memory as an executable allocates it."""
    copy = aligned_empty(value.shape, value.dtype)
    copy[...] = value
    return copy


def as_tensor(array: np.ndarray) -> Any:
    """Return a tensor of tvm-ffi that aliases the array, which is contiguous and writable."""
    import tvm_ffi

    if array.dtype.name != BFLOAT16:
        return tvm_ffi.from_dlpack(array)
    return _viewed(tvm_ffi.from_dlpack(array.view(np.uint16)), BFLOAT16)


def as_array(tensor: Any) -> np.ndarray:
    """Return an array that aliases a tensor on the host."""
    if str(tensor.dtype) != BFLOAT16:
        return np.from_dlpack(tensor)
    return np.from_dlpack(_viewed(tensor, "uint16")).view(numpy_dtype(BFLOAT16))


def _viewed(tensor: Any, dtype: str) -> Any:
    import tvm_ffi

    view = tvm_ffi.get_global_func("runtime.TVMTensorCreateView")
    return view(tensor, tvm_ffi.Shape(tensor.shape), tvm_ffi.dtype(dtype), 0)
