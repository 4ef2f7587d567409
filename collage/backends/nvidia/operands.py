"""Numbers of a kernel's operands: its inputs, then the constants of its blob.

0 <= i < inputs is an input, inputs + j is constant j, -1 is an absent operand. The plug-in uploads constants
to the device once, at initialisation of the executable.
"""

import numpy as np

from collage.frontend.model import Function
from collage.frontend.region import region_values
from collage.graph.index_set import IndexSet

ABSENT = -1


class Operands:
    """Numbers the operands of a region's kernel; `constants` are in the order of first use."""

    def __init__(self, function: Function, nodes: IndexSet) -> None:
        self._function = function
        self.inputs, self.outputs = region_values(function, nodes)
        self._constants: dict[str, np.ndarray] = {}

    def number(self, value: str) -> int:
        """Return the number of `value`; "" is an absent operand."""
        if not value:
            return ABSENT
        if value in self.inputs:
            return self.inputs.index(value)
        self._constants.setdefault(value, np.ascontiguousarray(self._function.weights[value]))
        return len(self.inputs) + list(self._constants).index(value)

    @property
    def constants(self) -> list[np.ndarray]:
        return list(self._constants.values())
