"""Functions of one kernel, called without the virtual machine.

Such a kernel runs a whole model in a framework. It reads the caller's arrays and writes into new arrays for
the caller, so there are no copies beyond the framework's own. Small tensors are the exception: copying them
to and from buffers that the kernel has bound once costs less than binding an array.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from collage.runtime.arrays import BFLOAT16, as_array, as_tensor, numpy_dtype
from collage.runtime.manifest import Signature
from collage.runtime.tensor_exchange import DeviceTensor, Feed, Received, staging

Outputs = dict[str, np.ndarray]


class CallableFunction(Protocol):
    """A function of an executable; the session calls it with its lock held."""

    signature: Signature
    names: tuple[str, ...]

    def run_arrays(self, arrays: Sequence[np.ndarray]) -> Outputs:
        """Run on arrays of the right shapes, in the function's order."""
        ...

    def run(self, values: Mapping[str, Received]) -> Outputs:
        """Run on values of the host."""
        ...

    def run_tensors(self, values: Mapping[str, Received], stream: int) -> dict[str, DeviceTensor]:
        """Run where the kernels are, on a stream."""
        ...


class DirectFunction:
    """A function of one kernel on the host, called directly."""

    def __init__(self, signature: Signature, kernel: Callable[..., Any]) -> None:
        """Wrap the kernel; with a data-dependent output shape it returns its outputs."""
        import tvm_ffi

        self.signature = signature
        self.names = tuple(tensor.name for tensor in signature.inputs)
        self._kernel = kernel
        dtypes = [tensor.dtype for tensor in (*signature.inputs, *signature.outputs)]
        self._tensor = as_tensor if BFLOAT16 in dtypes else tvm_ffi.from_dlpack
        self._feed = Feed(signature.inputs)
        self._inputs = [
            (numpy_dtype(tensor.dtype), *self._feed.staging(tensor)) for tensor in signature.inputs
        ]
        self._allocates = any(
            tensor.shape is None or min(tensor.shape, default=0) < 0 for tensor in signature.outputs
        )
        self._outputs = [
            (tensor.name, tensor.shape or (), numpy_dtype(tensor.dtype), *staging(tensor))
            for tensor in signature.outputs
        ]

    def run_arrays(self, arrays: Sequence[np.ndarray]) -> Outputs:
        """Run on arrays of the right shapes, in the function's order."""
        arguments = []
        for array, (dtype, buffer, staged) in zip(arrays, self._inputs, strict=True):
            fits = array.dtype is dtype
            if fits and staged is not None:
                staged[...] = array
                arguments.append(buffer)
            elif fits and array.flags.carray and array.size:
                arguments.append(self._tensor(array))
            else:
                return self.run(dict(zip(self.names, arrays, strict=True)))
        return self._called(arguments)

    def run(self, values: Mapping[str, Received]) -> Outputs:
        """Run on values of the host."""
        return self._called(self._feed.arguments(values, 0))

    def run_tensors(self, values: Mapping[str, Received], stream: int) -> dict[str, DeviceTensor]:
        """Run on values of the host; the results are tensors there."""
        return {name: DeviceTensor(as_tensor(array)) for name, array in self.run(values).items()}

    def _called(self, arguments: list[Any]) -> Outputs:
        if self._allocates:
            result = self._kernel(*arguments)
            tensors = [result] if len(self._outputs) == 1 else list(result)
            named = zip(self._outputs, tensors, strict=True)
            return {output[0]: np.array(as_array(tensor)) for output, tensor in named}
        outputs = {}
        for name, shape, dtype, buffer, staged in self._outputs:
            if staged is None:
                outputs[name] = np.empty(shape, dtype)
                buffer = self._tensor(outputs[name])
            arguments.append(buffer)
        self._kernel(*arguments)
        return {
            name: outputs[name] if staged is None else staged.copy()
            for name, _, _, _, staged in self._outputs
        }
