"""Functions of one kernel, called without the virtual machine.

Such a kernel runs a whole model in a framework. It reads the caller's arrays and writes into new arrays for
the caller, so there are no copies beyond the framework's own.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from collage.runtime.arrays import BFLOAT16, as_array, as_tensor, numpy_dtype
from collage.runtime.manifest import Signature
from collage.runtime.tensor_exchange import DeviceTensor, Feed, Received

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
        names = [tensor.dtype for tensor in (*signature.inputs, *signature.outputs)]
        self._tensor = as_tensor if BFLOAT16 in names else tvm_ffi.from_dlpack
        self._feed = Feed(signature.inputs)
        self._dtypes = [numpy_dtype(tensor.dtype) for tensor in signature.inputs]
        self._allocates = any(
            tensor.shape is None or min(tensor.shape, default=0) < 0 for tensor in signature.outputs
        )
        self._outputs = [
            (tensor.name, tensor.shape or (), numpy_dtype(tensor.dtype))
            for tensor in signature.outputs
        ]

    def run_arrays(self, arrays: Sequence[np.ndarray]) -> Outputs:
        """Run on arrays of the right shapes, in the function's order."""
        for array, dtype in zip(arrays, self._dtypes, strict=True):
            if array.dtype is not dtype or not array.flags.carray or not array.size:
                return self.run(dict(zip(self.names, arrays, strict=True)))
        return self._called([self._tensor(array) for array in arrays])

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
            return {name: np.array(as_array(tensor)) for (name, _, _), tensor in named}
        outputs = {name: np.empty(shape, dtype) for name, shape, dtype in self._outputs}
        self._kernel(*arguments, *map(self._tensor, outputs.values()))
        return outputs
