"""Where a kernel's operands are: among its inputs, or among the constants that its blob carries.

One number says it: 0 <= i < inputs is an input, inputs + j is constant j, -1 is an operand that is not
there. The plug-in uploads constants to the device once, when the executable is initialised.
"""

import numpy as np

from collage.frontend.model import Function
from collage.frontend.region import region_values
from collage.graph.index_set import IndexSet

ABSENT = -1


class Operands:
    """Numbers the operands of the kernel of a region; `constants` are those met, in order."""

    def __init__(self, function: Function, nodes: IndexSet) -> None:
        self._function = function
        self.inputs, self.outputs = region_values(function, nodes)
        self._constants: dict[str, np.ndarray] = {}

    def number(self, value: str) -> int:
        """Return the number of `value`, "" for an operand that is not there."""
        if not value:
            return ABSENT
        if value in self.inputs:
            return self.inputs.index(value)
        self._constants.setdefault(value, np.ascontiguousarray(self._function.weights[value]))
        return len(self.inputs) + list(self._constants).index(value)

    @property
    def constants(self) -> list[np.ndarray]:
        return list(self._constants.values())
