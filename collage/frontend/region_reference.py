"""A region on unoptimised ONNX Runtime: the reference of its kernels on inputs of any values."""

import threading
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import onnxruntime

from collage.frontend.inputs import open_model
from collage.frontend.model import Function
from collage.frontend.region import region_onnx, region_values, region_weights
from collage.graph.index_set import IndexSet

MAX_RUN_S = 10.0
"""Time limit of a run: on unusual values a loop may have no end."""


class RegionReference:
    """Runs a region; the session is opened by the first run."""

    def __init__(self, function: Function, nodes: IndexSet) -> None:
        self._function, self._nodes = function, nodes
        self._inputs, self._outputs = region_values(function, nodes)

    @cached_property
    def _session(self) -> onnxruntime.InferenceSession:
        model = region_onnx(self._function, self._nodes, weights_as_inputs=True)
        del model.graph.input[len(self._inputs) :]
        names = region_weights(self._function, self._nodes)
        return open_model(model, {name: self._function.weights[name] for name in names})

    def run(self, inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...] | None:
        """Return the outputs; None where ONNX Runtime refuses the inputs.

        Raises:
            TimeoutError: the run takes more than `MAX_RUN_S`; it is ended.
        """
        feed = dict(zip(self._inputs, inputs, strict=True))
        options = onnxruntime.RunOptions()
        limit = threading.Timer(MAX_RUN_S, setattr, (options, "terminate", True))
        limit.daemon = True
        limit.start()
        try:
            outputs = self._session.run(list(self._outputs), feed, options)
        except Exception as error:
            if options.terminate:
                raise TimeoutError(f"the region runs for more than {MAX_RUN_S:g} s") from error
            return None
        finally:
            limit.cancel()
        return tuple(np.asarray(output) for output in outputs)
