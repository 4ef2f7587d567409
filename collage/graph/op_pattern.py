"""Operator kinds and their order for fusion rules (TVM's `OpPatternKind`).

The numbers are those of the `op_pattern` attribute by `relax.transform.AnnotateTIROpPattern`; a higher kind
fuses with less.
"""

from enum import IntEnum


class OpPatternKind(IntEnum):
    """TVM's operator kinds; a sub-graph's kind is the maximum over its nodes."""

    ELEMWISE = 0
    BROADCAST = 1
    INJECTIVE = 2
    COMM_REDUCE = 3
    OUT_ELEMWISE_FUSABLE = 4
    TUPLE = 7
    OPAQUE = 8
