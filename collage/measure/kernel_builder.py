"""The kernel builder of a worker process: the protocol, and a kernel that is ready to be called.

A worker builds kernels through a `KernelBuilder`. The usual one is
`collage.measure.function_kernel_builder`, which imports TVM and the backends; a worker with another
loader (`Setup.loader`) starts without them.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from collage.measure.call_overhead import DispatchOverhead
from collage.measure.device import Device
from collage.measure.edge_judgement import EdgeJudgement
from collage.measure.measurement_request import MeasurementRequest
from collage.measure.messages import Setup
from collage.measure.numerics import difference, reduced_difference
from collage.measure.random_outputs import random_difference
from collage.measure.timing import Call
from collage.runtime.arrays import as_array


@dataclass(frozen=True)
class Prepared:
    """A kernel with its buffers: `call(*arguments)` reads `inputs` and writes `outputs`.

    The arrays alias the tensors in `arguments`.

    Attributes:
        expected: reference outputs.
        allocates: the kernel returns its outputs; `outputs` is empty.
        reduced: the kernel computes in reduced precision.
        draws: the kernel draws random numbers.
        probabilities: positions of outputs with a scale of 1.
    """

    call: Call
    arguments: tuple[object, ...]
    inputs: tuple[np.ndarray, ...]
    outputs: tuple[np.ndarray, ...]
    expected: tuple[np.ndarray, ...]
    quantised: bool = False
    allocates: bool = False
    reduced: bool = False
    draws: bool = False
    is_one_draw: bool = False
    """The kernel does nothing but draw."""
    probabilities: frozenset[int] = frozenset()
    quantisation_steps: Mapping[int, np.ndarray] = field(default_factory=dict)
    """Steps of quantised outputs by position (`collage.frontend.quantisation_steps`)."""
    fetch: Callable[[], None] | None = None
    """Copies inputs and outputs back from the device into the arrays; None on the CPU."""
    judge_edges: Callable[[], EdgeJudgement] | None = None
    """Judges the kernel on edge inputs and restores its ordinary ones; None without edge inputs."""
    built_s: float = 0.0
    """Build time on another machine, in seconds; 0 for a kernel built by this process."""

    def judge(self, outputs: Sequence[np.ndarray]) -> tuple[str, float]:
        """Return the outputs' defect in words, or "", and the error of a reduced kernel, else 0."""
        if self.draws:
            reason = random_difference(self.expected, outputs, is_one_draw=self.is_one_draw)
            return reason, 0.0
        if self.reduced:
            return reduced_difference(self.expected, outputs, self.probabilities)
        reason = difference(
            self.expected, outputs, quantised=self.quantised, steps=self.quantisation_steps
        )
        return reason, 0.0

    def results(self, returned: object) -> tuple[np.ndarray, ...]:
        """Return the outputs of a call with the result `returned`."""
        if self.fetch:
            self.fetch()
        if not self.allocates:
            return self.outputs
        tensors = [returned] if len(self.expected) == 1 else list(returned)  # type: ignore[call-overload]
        return tuple(as_array(tensor) for tensor in tensors)


def run_on(prepared: Prepared, inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Return copies of a kernel's outputs on other inputs; its buffers keep these."""
    for buffer, value in zip(prepared.inputs, inputs, strict=True):
        buffer[...] = value
    returned = prepared.call(*prepared.arguments)
    return tuple(output.copy() for output in prepared.results(returned))


@contextmanager
def ordinary_inputs_after(prepared: Prepared) -> Iterator[None]:
    """Restore the kernel's present inputs at the end."""
    before = [value.copy() for value in prepared.inputs]
    try:
        yield
    finally:
        for buffer, value in zip(prepared.inputs, before, strict=True):
            buffer[...] = value


class KernelBuilder(Protocol):
    """Builds kernels. A test or an embedding program may have its own (`Setup.loader`)."""

    empty: Call
    """A native function with any arguments and no effect."""
    wake: Callable[[], object] | None
    """Wakes the kernels' thread pool; None where kernels have one thread."""

    def prepare(self, work: MeasurementRequest) -> Prepared:
        """Build the kernel of `work` with buffers. Any exception is the reason of an invalid cost."""
        ...

    def build(self, work: MeasurementRequest) -> None:
        """Build the kernel of `work` into the setup's folder. Any exception is a reason, too."""
        ...

    def boundary(self) -> DispatchOverhead:
        """Measure the dispatch overhead of a kernel call."""
        ...

    def open_device(self) -> Device:
        """Return the kernels' device. Raises MeasureError for a CPU."""
        ...


def open_kernel_builder(setup: Setup) -> KernelBuilder:
    """Return the kernel builder named by `setup.loader`."""
    module, _, name = setup.loader.partition(":")
    builder: KernelBuilder = getattr(importlib.import_module(module), name)(setup)
    return builder
