"""The kernel builder of a worker process: the protocol, and a kernel that is ready to be called.

A worker builds kernels through a `Workshop`. The usual one is
`collage.measure.function_kernel_builder`, which imports TVM and the backends; a worker with another
loader (`Setup.loader`) starts without them.
"""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from collage.measure.call_overhead import Boundary
from collage.measure.device import Device
from collage.measure.measurement_request import Work
from collage.measure.messages import Setup
from collage.measure.numerics import difference, reduced_difference
from collage.measure.timing import Call
from collage.runtime.arrays import as_array


@dataclass(frozen=True)
class Prepared:
    """A kernel with its buffers: `call(*arguments)` reads `inputs` and writes `outputs`.

    The arrays alias the tensors in `arguments`. `expected` are the reference outputs. A kernel that
    `allocates` has no `outputs`: it returns them. One that is `reduced` computes in less than float32;
    `probabilities` are the positions of outputs with a scale of 1.
    """

    call: Call
    arguments: tuple[object, ...]
    inputs: tuple[np.ndarray, ...]
    outputs: tuple[np.ndarray, ...]
    expected: tuple[np.ndarray, ...]
    quantised: bool = False
    allocates: bool = False
    reduced: bool = False
    probabilities: frozenset[int] = frozenset()
    fetch: Callable[[], None] | None = None
    """Brings inputs and outputs back from a device into the arrays."""
    built_s: float = 0.0
    """Seconds that a build took elsewhere; 0 for a kernel that was built here."""

    def judge(self, outputs: Sequence[np.ndarray]) -> tuple[str, float]:
        """Return what is wrong with the outputs, or "", and the error of a reduced kernel, else 0."""
        if self.reduced:
            return reduced_difference(self.expected, outputs, self.probabilities)
        return difference(self.expected, outputs, quantised=self.quantised), 0.0

    def results(self, returned: object) -> tuple[np.ndarray, ...]:
        """Return the outputs of a call that gave `returned`."""
        if self.fetch:
            self.fetch()
        if not self.allocates:
            return self.outputs
        tensors = [returned] if len(self.expected) == 1 else list(returned)  # type: ignore[call-overload]
        return tuple(as_array(tensor) for tensor in tensors)


class Workshop(Protocol):
    """Makes kernels. A test or an embedding program may bring its own (`Setup.loader`)."""

    empty: Call
    """A native function that takes any arguments and does nothing."""
    wake: Callable[[], object] | None
    """Wakes the threads that kernels share; None where kernels have one thread."""

    def prepare(self, work: Work) -> Prepared:
        """Build the kernel of `work` with buffers. May raise anything: the reason counts."""
        ...

    def build(self, work: Work) -> None:
        """Build the kernel of `work` and leave it in the setup's folder. May raise anything."""
        ...

    def boundary(self) -> Boundary:
        """Measure what the executable adds to each kernel call."""
        ...

    def open_device(self) -> Device:
        """Return the device that kernels run on, where that is not the CPU."""
        ...


def open_workshop(setup: Setup) -> Workshop:
    """Make the workshop that `setup.loader` names."""
    module, _, name = setup.loader.partition(":")
    workshop: Workshop = getattr(importlib.import_module(module), name)(setup)
    return workshop
