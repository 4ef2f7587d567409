"""Inputs and outputs of a bundle: numpy arrays, and the tensors of any framework through DLPack.

An input stays where it is when kernels can read it there: it lies on their device, is contiguous, and begins
at a multiple of `ALIGNMENT` bytes, as kernels were told when they were compiled. Any other is copied into a
buffer that lives as long as the bundle, so kernels need not bind it again. Outputs are arrays of the
caller's own, or `DeviceTensor`s: memory on the kernels' device, for whoever understands DLPack.

Taking a small array's memory, or giving it, costs more than copying what is in it. Tensors of at most
`SMALL_BYTES` are therefore copied between arrays and buffers that were bound once.

On a GPU all is queued on one stream, and nothing waits for the host. A producer is told the stream when
its tensor is taken, and queues what is needed that the data is there; a consumer tells its own when it takes
an output, and that stream then waits for the kernels. PyTorch and CuPy do both by themselves.
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
"""Some 0.1 us of copying, where to bind a tensor takes 0.4."""
DEFAULT_STREAM = 1
"""DLPack's number of CUDA's default stream, whose handle is 0."""

Received = Any
"""A numpy array, or a tensor of tvm-ffi: what a value becomes when it is taken."""


def receive(name: str, value: object, stream: int) -> Received:
    """Take an input: anything that numpy understands, or has `__dlpack__`.

    Args:
        name: of the input.
        value: a tensor, an array, a list.
        stream: on which it will be read, where it lies on a GPU.

    Raises:
        InputError: its owner does not hand it out.
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
    """Tell whether a received value lies in a GPU's memory."""
    return not isinstance(value, np.ndarray) and value.device.dlpack_device_type() == GPU


class Feed:
    """Puts the inputs of one function where its kernels read them."""

    def __init__(self, inputs: Sequence[Tensor], cuda: Cuda | None = None) -> None:
        """Feed kernels on the host, or on the GPU where there is `cuda`."""
        import tvm_ffi

        self._inputs, self._cuda = inputs, cuda
        self._from_dlpack = tvm_ffi.from_dlpack
        self._buffers: dict[str, Any] = {}
        self._staged: dict[str, np.ndarray] = {}
        self._quick = [(one, _plain_dtype(one.dtype), *self.staging(one)) for one in inputs]

    def arguments(self, values: Mapping[str, Received], stream: int) -> list[Any]:
        """Return the function's arguments for `values`.

        Raises:
            InputError: a dtype or a place that the function does not take.
        """
        return [self._argument(one, values[one.name], stream) for one in self._inputs]

    def host_arguments(self, arrays: Sequence[np.ndarray]) -> list[Any]:
        """Return the arguments for arrays in the function's order: what `arguments` does, and faster.

        It runs in every call, so each array is asked for its dtype and its flags once, and for nothing
        else; whatever does not fit at once goes the long way.
        """
        if self._cuda is not None:
            return [
                self._argument(one, array, 0)
                for one, array in zip(self._inputs, arrays, strict=True)
            ]
        arguments = []
        for (one, dtype, buffer, staged), array in zip(self._quick, arrays, strict=True):
            if array.dtype is not dtype:
                arguments.append(self._argument(one, array, 0))
            elif staged is not None:
                staged[...] = array
                arguments.append(buffer)
            elif array.flags.carray and array.size:
                tensor = self._from_dlpack(array)
                fits = tensor.data_ptr() % ALIGNMENT == 0
                arguments.append(tensor if fits else self._copied_in(one, array))
            else:
                arguments.append(self._copied_in(one, array))
        return arguments

    def staging(self, wanted: Tensor) -> tuple[Any, np.ndarray | None]:
        """Return the buffer of an input that is always copied, as a tensor and as an array."""
        if self._cuda is not None or not is_small(wanted):
            return None, None
        buffer = self._buffer(wanted)
        return buffer, as_array(buffer)

    def _argument(self, wanted: Tensor, value: Received, stream: int) -> Any:
        if str(value.dtype) != wanted.dtype:
            raise InputError(
                f"input {wanted.name!r} has dtype {value.dtype}; expected {wanted.dtype}. "
                f"Convert it with .astype({wanted.dtype!r})."
            )
        if is_on_gpu(value):
            return self._from_gpu(wanted, value, stream)
        if self._cuda is not None:
            buffer = self._buffer(wanted)
            array = np.ascontiguousarray(_array(value))
            self._cuda.copy(buffer.data_ptr(), array.ctypes.data, array.nbytes, TO_DEVICE, stream)
            return buffer
        if (tensor := _in_place(value)) is not None:
            return tensor
        return self._copied_in(wanted, _array(value))

    def _copied_in(self, wanted: Tensor, array: np.ndarray) -> Any:
        buffer = self._buffer(wanted)
        if wanted.name not in self._staged:
            self._staged[wanted.name] = as_array(buffer)
        np.copyto(self._staged[wanted.name], array)
        return buffer

    def _from_gpu(self, wanted: Tensor, value: Any, stream: int) -> Any:
        if self._cuda is None:
            raise InputError(
                f"input {wanted.name!r} lies on a GPU, and this bundle runs on the CPU: move it there"
            )
        if not value.is_contiguous():
            raise InputError(
                f"input {wanted.name!r} is not contiguous: make a contiguous copy on the GPU"
            )
        if value.data_ptr() % ALIGNMENT == 0:
            return value
        buffer = self._buffer(wanted)
        self._cuda.copy(buffer.data_ptr(), value.data_ptr(), size_bytes(value), ON_DEVICE, stream)
        return buffer

    def _buffer(self, wanted: Tensor) -> Any:
        if wanted.name not in self._buffers:
            self._buffers[wanted.name] = _buffer(wanted, self._cuda is not None)
        return self._buffers[wanted.name]


@dataclass(frozen=True)
class DeviceTensor:
    """An output where the kernels left it; DLPack takes it to PyTorch, CuPy, JAX, numpy (on a CPU).

    It is not to be written to: it may be a constant of the model. On a GPU its memory is used again when
    the last reference to it goes, by what is then queued on `stream`.

    >>> tensor = DeviceTensor(as_tensor(np.zeros((2, 3), np.float32)))
    >>> tensor.shape, tensor.dtype, tensor.numpy().sum()
    ((2, 3), 'float32', np.float32(0.0))
    """

    _tensor: Any
    _cuda: Cuda | None = None
    stream: int = 0
    """Of the kernels that write it, the handle as an integer."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the dimensions."""
        return tuple(self._tensor.shape)

    @property
    def dtype(self) -> str:
        """Its name, as numpy has it."""
        return str(self._tensor.dtype)

    def numpy(self) -> np.ndarray:
        """Wait, and return a copy on the host."""
        if self._cuda is None:
            return np.array(as_array(self._tensor))
        made = np.empty(self.shape, numpy_dtype(self.dtype))
        self._cuda.copy(
            made.ctypes.data, self._tensor.data_ptr(), made.nbytes, TO_HOST, self.stream
        )
        self._cuda.wait(self.stream)
        return made

    def __dlpack_device__(self) -> tuple[int, int]:
        device: tuple[int, int] = self._tensor.__dlpack_device__()
        return device

    def __dlpack__(
        self, *, stream: int | None = None, max_version: tuple[int, int] | None = None, **words: Any
    ) -> object:
        """Hand the memory out; `stream`, of the consumer, will find the data there.

        Args:
            stream: DLPack's number: None or 1 is the default stream, -1 asks for no order at all.
            max_version: see the protocol, as all further words.
        """
        if self._cuda is not None and stream != -1:
            then = 0 if stream in (None, DEFAULT_STREAM) else int(stream or 0)
            self._cuda.order(self.stream, then)
        return self._tensor.__dlpack__(max_version=max_version, **words)


def given(
    results: Sequence[Any], arguments: Sequence[Any], cuda: Cuda | None, stream: int
) -> list[DeviceTensor]:
    """Return a call's results as tensors of the caller's own.

    A function may return an input, or a view of one, whose memory the caller or the next call writes.
    """
    ranges = [(one.data_ptr(), one.data_ptr() + size_bytes(one)) for one in arguments]
    owned = []
    for result in results:
        place = result.data_ptr()
        if any(start <= place < end for start, end in ranges):
            result = _copied(result, cuda, stream)
        owned.append(DeviceTensor(result, cuda, stream))
    return owned


def is_small(tensor: Tensor) -> bool:
    """Tell whether numpy copies such a tensor in less time than it takes to hand it on."""
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
    """Makes arrays of what a function returns on the host; they are the caller's own."""

    def __init__(self, function: Callable[..., Any], outputs: Sequence[Tensor]) -> None:
        import tvm_ffi

        places = [(one, *staging(one)) for one in outputs]
        self._outputs = [(one.name, place, _array_of(one.dtype)) for one, _, place in places]
        self._places = {one.name: place for one, _, place in places if place is not None}
        wrap = tvm_ffi.get_global_func("collage.copy_results")
        self._function = wrap(function, [buffer for _, buffer, _ in places])

    def call(self, arguments: Sequence[Any]) -> dict[str, np.ndarray]:
        """Run on tensors of the host."""
        others = self._function(*arguments)
        if others is None:
            return {name: place.copy() for name, place in self._places.items()}
        tensors = iter(others)
        return {
            name: array(next(tensors)) if place is None else place.copy()
            for name, place, array in self._outputs
        }


def _array_of(dtype: str) -> Callable[[Any], np.ndarray]:
    """Return the function that makes an array of a result of that dtype, in the result's memory."""
    return as_array if dtype == BFLOAT16 else np.from_dlpack


def size_bytes(tensor: Any) -> int:
    """Return the bytes of a contiguous tensor."""
    return int(tensor.numel()) * int(tensor.dtype.itemsize)


def _plain_dtype(name: str) -> np.dtype | None:
    """Return numpy's dtype where its arrays go to DLPack as they are: None for bfloat16."""
    return None if name == BFLOAT16 else np.dtype(name)


def _in_place(value: Received) -> Any:
    """Return the value as a tensor where kernels can read it as it is, else None."""
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
    made = _device_tensor(tensor.shape, str(tensor.dtype))
    cuda.copy(made.data_ptr(), tensor.data_ptr(), size_bytes(tensor), ON_DEVICE, stream)
    return made
