"""Common parts of the plug-in's own kernels (`native/kernels/{native_kernel,activation}.h`).

Activations with their parameters, weights in panels of output channels, and availability.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from math import prod

import numpy as np

from collage.backends.base import Availability
from collage.backends.common.primitives.primitive import PostOp
from collage.errors import BackendError
from collage.runtime.plugin import load_plugin

PANEL = 32
"""Output channels of one contiguous panel of weights (kPanel)."""


class ActivationKind(IntEnum):
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

    kind: ActivationKind = ActivationKind.NONE
    a: float = 0.0
    b: float = 0.0


NATIVE_ACTIVATIONS: dict[str, Callable[[float, float], Activation]] = {
    "relu": lambda a, b: (
        Activation(ActivationKind.LEAKY_RELU, a)
        if a
        else Activation(ActivationKind.CLAMP, 0, np.inf)
    ),
    "clip": lambda a, b: Activation(ActivationKind.CLAMP, a, b),
    "logistic": lambda a, b: Activation(ActivationKind.SIGMOID),
    "hardsigmoid": lambda a, b: Activation(ActivationKind.HARD_SIGMOID, a, b),
    "hardswish": lambda a, b: Activation(ActivationKind.HARD_SWISH, a, b),
    "linear": lambda a, b: Activation(ActivationKind.LINEAR, a, b),
}
"""By oneDNN's algorithm, from its two parameters. SiLU is `swish` with alpha 1 only, so it is not listed."""


def native_activation(post_op: PostOp) -> Activation:
    """Return the kernels' form of a post-op. Raises BackendError where they have none."""
    if post_op.algorithm == "swish" and post_op.alpha == 1.0:
        return Activation(ActivationKind.SILU)
    if post_op.algorithm not in NATIVE_ACTIVATIONS:
        raise BackendError(f"{post_op.algorithm} cannot be done while a result is stored")
    return NATIVE_ACTIVATIONS[post_op.algorithm](post_op.alpha, post_op.beta)


def by_panels(weights: np.ndarray) -> np.ndarray:
    """Order `weights` [out, in, height, width] as [panels, in, height * width, PANEL]."""
    channels_out, channels_in = weights.shape[:2]
    panels = -(-channels_out // PANEL)
    padded = np.zeros((panels * PANEL, channels_in, prod(weights.shape[2:])), np.float32)
    padded[:channels_out] = weights.reshape(channels_out, channels_in, -1)
    grouped = padded.reshape(panels, PANEL, channels_in, -1)
    return np.ascontiguousarray(grouped.transpose(0, 2, 3, 1))


def kernels_availability(name: str, revision: str) -> Availability:
    """Tell whether this build has the kernels called `name` and the processor their instructions."""
    import tvm_ffi

    try:
        load_plugin()
    except BackendError as error:
        return Availability(str(error))
    instructions = tvm_ffi.get_global_func(f"collage.{name}_instructions", allow_missing=True)
    if instructions is None:
        return Availability(f"this build of the plug-in has no {name} kernels")
    if (instruction_set := str(instructions())) == "plain":
        return Availability("the processor has no AVX2 with FMA")
    return Availability("", {name: revision, "instructions": instruction_set})
