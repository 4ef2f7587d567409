"""The sensitivity of a function's outputs to errors inside it: the gain of a value.

A reduced-precision region adds an error to its outputs, relative to their scale. A residual sum or a mean
damps this error; a softmax over large logits amplifies it. The amplification depends on the function, not
on the cause of the error, so the original operators can measure it: noise is added to one value at a time,
and the gain is the largest output error divided by the error of the value (`collage.runtime.precision`
defines both). The noise is normal and as large as the tolerance, because a softmax saturates. Rounding
errors differ from noise, so gains only rank regions; the gate measures the sum of their errors.

One session serves all values: every float32 value passes through an addition with an extra input, a scalar
zero except for the value under test. It runs unoptimised, a few dozen milliseconds per value; after the
time limit the gain of the nearest measured value is used.
"""

import math
import time
from collections.abc import Mapping

import numpy as np
import onnx

from collage.frontend.inputs import open_unoptimised
from collage.frontend.model import Function
from collage.frontend.region import probability_outputs, region_values
from collage.graph.index_set import IndexSet
from collage.runtime.precision import MASK, output_error

MAX_GAIN = 100.0
"""Upper limit of a gain; a changed integer has no meaningful relative error."""
NOISE_SUFFIX = "#noise"
MADE = "#made"


class Sensitivity:
    """The gains of one function on one set of inputs, measured on demand."""

    def __init__(
        self, function: Function, inputs: Mapping[str, np.ndarray], level: float, seconds: float
    ) -> None:
        """Prepare the measurement; nothing runs yet.

        Args:
            function: an imported function.
            inputs: input arrays, in the function's order.
            level: error of the noise relative to a value's scale.
            seconds: time limit of all measurements, in seconds.
        """
        self._function = function
        self._level = level
        self._remaining_s = seconds
        self._place = {v: node.index for node in function.graph.nodes for v in node.outputs}
        self._points = [value for value in self._place if self._is_float(value)]
        self._feed: dict[str, np.ndarray] = dict(inputs)
        self._feed |= {value + NOISE_SUFFIX: np.zeros((), np.float32) for value in self._points}
        self._gains: dict[str, float] = {}
        self._regions: dict[IndexSet, float] = {}
        self._exact: dict[str, np.ndarray] = {}

    def of_region(self, nodes: IndexSet) -> float:
        """Return the largest gain among the outputs of a region."""
        if nodes not in self._regions:
            outputs = region_values(self._function, nodes)[1]
            self._regions[nodes] = max((self.of(value) for value in outputs), default=1.0)
        return self._regions[nodes]

    def of(self, value: str) -> float:
        """Return the gain of one value; after the time limit, of the nearest measured value."""
        if value not in self._gains:
            if value in self._function.graph.outputs or value + NOISE_SUFFIX not in self._feed:
                self._gains[value] = 1.0
            elif self._remaining_s > 0:
                start = time.monotonic()
                self._gains[value] = self._measure_gain(value)
                self._remaining_s -= time.monotonic() - start
            else:
                return self._nearest(value)
        return self._gains[value]

    def _nearest(self, value: str) -> float:
        at = self._place[value]
        near = min(self._gains, key=lambda v: (abs(self._place[v] - at), v), default="")
        return self._gains.get(near, 1.0)

    def _measure_gain(self, value: str) -> float:
        if not self._exact:
            self._session = open_unoptimised(self._function, self._points, self._with_noise)
            names = [*self._function.graph.outputs, *self._points]
            self._exact = dict(zip(names, self._session.run(names, self._feed), strict=True))
        right = self._exact[value]
        unmasked = right[np.abs(right) < MASK]
        scale = float(np.abs(unmasked).max()) if unmasked.size else 0.0
        if not scale or not math.isfinite(scale):
            return 1.0
        noise = np.random.default_rng(0).standard_normal(right.shape).astype(np.float32)
        noise *= self._level * scale / max(float(np.abs(noise).max()), 1e-12)
        outputs = list(self._function.graph.outputs)
        noisy_outputs = self._session.run(outputs, {**self._feed, value + NOISE_SUFFIX: noise})
        certain = probability_outputs(self._function)
        errors = [
            output_error(self._exact[name], actual, probability=name in certain)
            for name, actual in zip(outputs, noisy_outputs, strict=True)
        ]
        return min(MAX_GAIN, max(errors) / self._level)

    def _with_noise(self, graph: onnx.GraphProto) -> None:
        """Replace every float value by its sum with a noise input."""
        points, changed = set(self._points), []
        for original in graph.node:
            node = onnx.NodeProto()
            node.CopyFrom(original)
            noisy = [value for value in original.output if value in points]
            names = [value + MADE if value in points else value for value in original.output]
            node.output[:] = names
            changed.append(node)
            changed += [
                onnx.helper.make_node("Add", [value + MADE, value + NOISE_SUFFIX], [value])
                for value in noisy
            ]
        del graph.node[:]
        graph.node.extend(changed)
        scalar = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, None)
        graph.input.extend(
            onnx.helper.make_value_info(value + NOISE_SUFFIX, scalar) for value in self._points
        )

    def _is_float(self, value: str) -> bool:
        static_type = self._function.graph.types.get(value)
        return static_type is not None and static_type.dtype == "float32"
