"""The architecture that machine code is generated for: that of the machine's GPU, as far as nvcc knows it.

Code for one minor number runs on the larger ones of its major, so a GPU that is younger than the compiler
gets the largest that the compiler knows below it. A machine without a GPU generates it for the one that it
is told (`generate_for`: it builds for others), or, to check that code compiles, for `DEFAULT`. Nothing
here uses instructions of one architecture alone (sm_90a): the products of CUTLASS are those of compute
capability 8.0, which all later ones run.
"""

import functools
import os
import re
import subprocess

from collage.backends.base import Availability
from collage.errors import BackendError
from collage.runtime.gpu import compute_capability
from collage.runtime.plugin import FULL_PRECISION

DEFAULT = "90"
TOLD = "COLLAGE_GPU_CAPABILITY"
"""Variable that names the capability to processes which build for another machine's GPU."""
OLDEST = 80
"""Before it there is neither bfloat16, nor TF32, nor a copy that does not go through registers."""


@functools.cache
def architecture() -> str:
    """Return nvcc's name of what to generate code for, e.g. "sm_90".

    Raises:
        BackendError: the GPU is too old, or nvcc knows none of its kind.
    """
    return f"sm_{chosen(_capability(), _known())}"


def tf32_reason() -> str:
    """Return why products are not to be rounded to TF32 here, "" when they may be."""
    (name,) = FULL_PRECISION
    if os.environ.get(name) == FULL_PRECISION[name]:
        return f"{name}={FULL_PRECISION[name]} keeps all of NVIDIA's libraries from it"
    if (capability := _capability()) < OLDEST:
        return f"this GPU has compute capability {capability / 10:.1f}, and TF32 begins with 8.0"
    return ""


def _capability() -> int:
    try:
        return int(compute_capability())
    except BackendError:  # no GPU: `libraries.driver_reason` says so where it matters
        return int(os.environ.get(TOLD, DEFAULT))


def generate_for(capability: str) -> None:
    """Have this process and those that it starts generate code for that GPU, where they have none."""
    os.environ[TOLD] = capability
    architecture.cache_clear()


def architecture_availability() -> Availability:
    """Tell whether code can be generated for the machine's GPU."""
    try:
        architecture()
    except BackendError as error:
        return Availability(str(error))
    return Availability("")


def chosen(capability: int, known: tuple[int, ...]) -> int:
    """Return the capability to compile for on a GPU of `capability`.

    Args:
        capability: e.g. 86.
        known: to the compiler; none where it did not say.

    Raises:
        BackendError: there is none.

    >>> chosen(121, (80, 90, 100, 120))
    120
    """
    if capability < OLDEST:
        raise BackendError(
            f"this GPU has compute capability {capability / 10:.1f}; the least is {OLDEST / 10:.1f}"
        )
    fitting = [one for one in known if one // 10 == capability // 10 and one <= capability]
    if known and not fitting:
        raise BackendError(
            f"this nvcc generates no code for compute capability {capability / 10:.1f}: install a newer one"
        )
    return max(fitting, default=capability)


@functools.cache
def _known() -> tuple[int, ...]:
    from collage.backends.nvidia.compiler import find_nvcc

    nvcc = find_nvcc()
    if nvcc is None:
        return ()
    done = subprocess.run(
        [nvcc.program, "--list-gpu-code"], capture_output=True, text=True, check=False
    )
    return tuple(sorted(map(int, re.findall(r"^sm_(\d+)$", done.stdout, re.MULTILINE))))
