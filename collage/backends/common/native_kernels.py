"""Shared parts of the plug-in's own kernels (`native/kernels/{native_kernel,activation}.h`).

Activations with their parameters, weights in panels of output channels, and whether the kernels are here.
"""

from dataclasses import dataclass
from enum import IntEnum
from math import prod

import numpy as np

from collage.backends.base import Availability
from collage.errors import BackendError
from collage.runtime.plugin import load_plugin

PANEL = 32
"""Output channels whose weights lie together (kPanel)."""


class Kind(IntEnum):
    """Activations of the kernels (`Activation` in native/kernels/activation.h)."""

    NONE = 0
    CLAMP = 1
    LEAKY_RELU = 2
    SIGMOID = 3
    SILU = 4
    HARD_SIGMOID = 5
    HARD_SWISH = 6
    LINEAR = 7


@dataclass(frozen=True, slots=True)
class Activation:
    """An activation with its two parameters."""

    kind: Kind = Kind.NONE
    a: float = 0.0
    b: float = 0.0


def by_panels(weights: np.ndarray) -> np.ndarray:
    """Order `weights` [out, in, height, width] as [panels, in, height * width, PANEL]."""
    channels_out, channels_in = weights.shape[:2]
    panels = -(-channels_out // PANEL)
    padded = np.zeros((panels * PANEL, channels_in, prod(weights.shape[2:])), np.float32)
    padded[:channels_out] = weights.reshape(channels_out, channels_in, -1)
    grouped = padded.reshape(panels, PANEL, channels_in, -1)
    return np.ascontiguousarray(grouped.transpose(0, 2, 3, 1))


def kernels_availability(name: str, revision: str) -> Availability:
    """Tell whether this build has the kernels called `name`, and the processor what they need."""
    import tvm_ffi

    try:
        load_plugin()
    except BackendError as error:
        return Availability(str(error))
    instructions = tvm_ffi.get_global_func(f"collage.{name}_instructions", allow_missing=True)
    if instructions is None:
        return Availability(f"this build of the plug-in has no {name} kernels")
    if (found := str(instructions())) == "plain":
        return Availability("the processor has no AVX2 with FMA")
    return Availability("", {name: revision, "instructions": found})
