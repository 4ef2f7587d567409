"""Inputs and outputs of a bundle: numpy arrays, and tensors of any framework through DLPack.

An input is used without a copy if kernels can read it: it is on their device, contiguous, and aligned to
`ALIGNMENT` bytes, as assumed by compiled kernels. Any other input is copied into a buffer with the bundle's
lifetime, so kernels bind it once. Outputs are arrays owned by the caller, or `DeviceTensor`s: memory on the
kernels' device, for DLPack.

The conversion of a small array to a tensor takes longer than a copy of its content. So tensors of at most
`SMALL_BYTES` are copied between arrays and buffers bound once.

On a GPU all work is queued on one stream, and nothing waits for the host. The producer of an input gets the
stream through DLPack and orders its own work before it. The consumer of an output passes its stream, and
that stream waits for the kernels. PyTorch and CuPy do both by themselves.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from collage.errors import InputError
from collage.runtime.arrays import (
    ALIGNMENT,
    BFLOAT16,
    aligned_empty,
    as_array,
    as_tensor,
    numpy_dtype,
)
from collage.runtime.cuda import ON_DEVICE, TO_DEVICE, TO_HOST, Cuda
from collage.runtime.manifest import Tensor

HOST, GPU = 1, 2
"""DLPack's device types."""
SMALL_BYTES = 8192
"""Size of about 0.1 us of copying; binding a tensor takes 0.4 us."""
DEFAULT_STREAM = 1
"""DLPack's number of CUDA's default stream, whose handle is 0."""

Received = Any
"""A numpy array, or a tensor of tvm-ffi."""


def receive(name: str, value: object, stream: int) -> Received:
    """Convert an input: an object with `__dlpack__`, or any input of `numpy.asarray`.

    Args:
        name: name of the input.
        value: tensor, array or list.
        stream: stream of the later read, for a value on a GPU.

    Raises:
        InputError: the owner of the value refuses the export.
    """
    if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack__"):
        return np.asarray(value)
    import tvm_ffi

    try:
        on_gpu = hasattr(value, "__dlpack_device__") and value.__dlpack_device__()[0] == GPU
        words = {"stream": stream or DEFAULT_STREAM} if on_gpu else {}
        return tvm_ffi.from_dlpack(value.__dlpack__(**words))
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"input {name!r} cannot be read through DLPack: {error}") from error


def is_on_gpu(value: Received) -> bool:
    """Tell whether a received value is in a GPU's memory."""
    return not isinstance(value, np.ndarray) and value.device.dlpack_device_type() == GPU


class Feed:
    """Places the inputs of one function for its kernels."""

    def __init__(self, inputs: Sequence[Tensor], cuda: Cuda | None = None) -> None:
        """Feed kernels on the host, or with `cuda` on the GPU."""
        import tvm_ffi

        self._inputs, self._cuda = inputs, cuda
        self._from_dlpack = tvm_ffi.from_dlpack
        self._buffers: dict[str, Any] = {}
        self._staged: dict[str, np.ndarray] = {}
        self._quick = [
            (tensor, _plain_dtype(tensor.dtype), *self.staging(tensor)) for tensor in inputs
        ]

    def arguments(self, values: Mapping[str, Received], stream: int) -> list[Any]:
        """Return the function's arguments for `values`.

        Raises:
            InputError: the function does not take a value's dtype or device.
        """
        return [self._argument(tensor, values[tensor.name], stream) for tensor in self._inputs]

    def host_arguments(self, arrays: Sequence[np.ndarray]) -> list[Any]:
        """Return the arguments for arrays in the function's order, faster than `arguments`.

        It runs in every call, so it reads only the dtype and the flags of each array, once. Arrays that do
        not fit take the slow path.
        """
        if self._cuda is not None:
            return [
                self._argument(tensor, array, 0)
                for tensor, array in zip(self._inputs, arrays, strict=True)
            ]
        arguments = []
        for (tensor, dtype, buffer, staged), array in zip(self._quick, arrays, strict=True):
            if array.dtype is not dtype:
                arguments.append(self._argument(tensor, array, 0))
            elif staged is not None:
                staged[...] = array
                arguments.append(buffer)
            elif array.flags.carray and array.size:
                argument = self._from_dlpack(array)
                fits = argument.data_ptr() % ALIGNMENT == 0
                arguments.append(argument if fits else self._copied_in(tensor, array))
            else:
                arguments.append(self._copied_in(tensor, array))
        return arguments

    def staging(self, tensor: Tensor) -> tuple[Any, np.ndarray | None]:
        """Return the buffer of a small input as a tensor and as an array; None, None for others."""
        if self._cuda is not None or not is_small(tensor):
            return None, None
        buffer = self._buffer(tensor)
        return buffer, as_array(buffer)

    def _argument(self, tensor: Tensor, value: Received, stream: int) -> Any:
        if str(value.dtype) != tensor.dtype:
            raise InputError(
                f"input {tensor.name!r} has dtype {value.dtype}; expected {tensor.dtype}. "
                f"Convert it with .astype({tensor.dtype!r})."
            )
        if is_on_gpu(value):
            return self._from_gpu(tensor, value, stream)
        if self._cuda is not None:
            buffer = self._buffer(tensor)
            array = np.ascontiguousarray(_array(value))
            self._cuda.copy(
                buffer.data_ptr(), array.ctypes.data, array.nbytes, kind=TO_DEVICE, stream=stream
            )
            return buffer
        if (argument := _in_place(value)) is not None:
            return argument
        return self._copied_in(tensor, _array(value))

    def _copied_in(self, tensor: Tensor, array: np.ndarray) -> Any:
        buffer = self._buffer(tensor)
        if tensor.name not in self._staged:
            self._staged[tensor.name] = as_array(buffer)
        np.copyto(self._staged[tensor.name], array)
        return buffer

    def _from_gpu(self, tensor: Tensor, value: Any, stream: int) -> Any:
        if self._cuda is None:
            raise InputError(
                f"input {tensor.name!r} lies on a GPU, and this bundle runs on the CPU: move it there"
            )
        if not value.is_contiguous():
            raise InputError(
                f"input {tensor.name!r} is not contiguous: make a contiguous copy on the GPU"
            )
        if value.data_ptr() % ALIGNMENT == 0:
            return value
        buffer = self._buffer(tensor)
        self._cuda.copy(
            buffer.data_ptr(), value.data_ptr(), size_bytes(value), kind=ON_DEVICE, stream=stream
        )
        return buffer

    def _buffer(self, tensor: Tensor) -> Any:
        if tensor.name not in self._buffers:
            self._buffers[tensor.name] = _buffer(tensor, self._cuda is not None)
        return self._buffers[tensor.name]


@dataclass(frozen=True)
class DeviceTensor:
    """An output on the kernels' device; DLPack exports it to PyTorch, CuPy, JAX, numpy (on a CPU).

    It must not be written to: it may be a constant of the model. On a GPU its memory is reused after the
    last reference is gone, by work queued later on `stream`.

    >>> tensor = DeviceTensor(as_tensor(np.zeros((2, 3), np.float32)))
    >>> tensor.shape, tensor.dtype, tensor.numpy().sum()
    ((2, 3), 'float32', np.float32(0.0))
    """

    _tensor: Any
    _cuda: Cuda | None = None
    stream: int = 0
    """Stream of its kernels: the handle as an integer."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the dimensions."""
        return tuple(self._tensor.shape)

    @property
    def dtype(self) -> str:
        """numpy's name of the element type."""
        return str(self._tensor.dtype)

    def numpy(self) -> np.ndarray:
        """Wait, and return a copy on the host."""
        if self._cuda is None:
            return np.array(as_array(self._tensor))
        array = np.empty(self.shape, numpy_dtype(self.dtype))
        self._cuda.copy(
            array.ctypes.data,
            self._tensor.data_ptr(),
            array.nbytes,
            kind=TO_HOST,
            stream=self.stream,
        )
        self._cuda.wait(self.stream)
        return array

    def __dlpack_device__(self) -> tuple[int, int]:
        device: tuple[int, int] = self._tensor.__dlpack_device__()
        return device

    def __dlpack__(
        self, *, stream: int | None = None, max_version: tuple[int, int] | None = None, **words: Any
    ) -> object:
        """Export the memory; the consumer's `stream` waits for the data.

        Args:
            stream: DLPack's number: None or 1 is the default stream, -1 disables the wait.
            max_version: see the DLPack protocol, also for further keywords.
        """
        if self._cuda is not None and stream != -1:
            consumer = 0 if stream in (None, DEFAULT_STREAM) else int(stream or 0)
            self._cuda.order(self.stream, consumer)
        return self._tensor.__dlpack__(max_version=max_version, **words)


def owned_results(
    results: Sequence[Any], arguments: Sequence[Any], cuda: Cuda | None, stream: int
) -> list[DeviceTensor]:
    """Return a call's results as tensors owned by the caller.

    A result that is an input, or a view of one, is copied: the caller or the next call may overwrite it.
    """
    ranges = [
        (argument.data_ptr(), argument.data_ptr() + size_bytes(argument)) for argument in arguments
    ]
    owned = []
    for result in results:
        place = result.data_ptr()
        if any(start <= place < end for start, end in ranges):
            result = _copied(result, cuda, stream)
        owned.append(DeviceTensor(result, cuda, stream))
    return owned


def is_small(tensor: Tensor) -> bool:
    """Tell whether copying such a tensor is faster than binding it."""
    dtype = _plain_dtype(tensor.dtype)
    if dtype is None or tensor.shape is None or min(tensor.shape, default=0) < 0:
        return False
    return math.prod(tensor.shape) * dtype.itemsize <= SMALL_BYTES


def staging(tensor: Tensor) -> tuple[Any, np.ndarray | None]:
    """Return a buffer on the host of a tensor that is always copied, as a tensor and as an array."""
    if not is_small(tensor):
        return None, None
    buffer = _buffer(tensor, on_gpu=False)
    return buffer, as_array(buffer)


class Results:
    """Converts results of a function on the host to arrays owned by the caller."""

    def __init__(self, function: Callable[..., Any], outputs: Sequence[Tensor]) -> None:
        import tvm_ffi

        places = [(output, *staging(output)) for output in outputs]
        self._outputs = [
            (output.name, place, _array_of(output.dtype)) for output, _, place in places
        ]
        self._places = {output.name: place for output, _, place in places if place is not None}
        wrap = tvm_ffi.get_global_func("collage.copy_results")
        self._function = wrap(function, [buffer for _, buffer, _ in places])

    def call(self, arguments: Sequence[Any]) -> dict[str, np.ndarray]:
        """Run on tensors of the host."""
        results = self._function(*arguments)
        if results is None:
            return {name: place.copy() for name, place in self._places.items()}
        tensors = iter(results)
        return {
            name: array(next(tensors)) if place is None else place.copy()
            for name, place, array in self._outputs
        }


def _array_of(dtype: str) -> Callable[[Any], np.ndarray]:
    """Return the conversion from a result of that dtype to an array in the same memory."""
    return as_array if dtype == BFLOAT16 else np.from_dlpack


def size_bytes(tensor: Any) -> int:
    """Return the bytes of a contiguous tensor."""
    return int(tensor.numel()) * int(tensor.dtype.itemsize)


def _plain_dtype(name: str) -> np.dtype | None:
    """Return numpy's dtype if its arrays convert to DLPack directly, else None (bfloat16)."""
    return None if name == BFLOAT16 else np.dtype(name)


def _in_place(value: Received) -> Any:
    """Return the value as a tensor without a copy if kernels can read it, else None."""
    if isinstance(value, np.ndarray):
        fits = value.flags.c_contiguous and value.flags.writeable and value.size
        return as_tensor(value) if fits and value.ctypes.data % ALIGNMENT == 0 else None
    fits = value.is_contiguous() and value.data_ptr() % ALIGNMENT == 0
    return value if fits and value.device.dlpack_device_type() == HOST else None


def _array(value: Received) -> np.ndarray:
    return value if isinstance(value, np.ndarray) else as_array(value)


def _buffer(like: Tensor, on_gpu: bool) -> Any:
    shape = like.shape or ()
    if on_gpu:
        return _device_tensor(shape, like.dtype)
    return as_tensor(aligned_empty(shape, numpy_dtype(like.dtype)))


def _device_tensor(shape: Sequence[int], dtype: str) -> Any:
    import tvm_ffi

    allocate = tvm_ffi.get_global_func("runtime.TVMTensorAllocWithScope")
    return allocate(tvm_ffi.Shape(shape), tvm_ffi.dtype(dtype), tvm_ffi.device("cuda", 0), None)


def _copied(tensor: Any, cuda: Cuda | None, stream: int) -> Any:
    if cuda is None:
        return as_tensor(np.array(as_array(tensor)))
    copy = _device_tensor(tensor.shape, str(tensor.dtype))
    cuda.copy(copy.data_ptr(), tensor.data_ptr(), size_bytes(tensor), kind=ON_DEVICE, stream=stream)
    return copy
