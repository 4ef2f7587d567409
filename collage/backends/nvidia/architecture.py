"""Target architecture of machine code: the machine's GPU, within nvcc's range.

Code for one minor number runs on larger ones of the same major, so a GPU newer than the compiler gets the
largest architecture of the compiler below its own. A machine without a GPU generates code for the capability
of `generate_for` (builds for other machines), or for `DEFAULT` (checks of compilation). No code uses
instructions of one architecture alone (sm_90a): CUTLASS's products are those of compute capability 8.0, and
all later GPUs run them.
"""

import functools
import os
import re
import subprocess

from collage.backends.base import Availability
from collage.backends.nvidia.compiler import find_nvcc
from collage.errors import BackendError
from collage.runtime.gpu import compute_capability
from collage.runtime.plugin import FULL_PRECISION

DEFAULT = "90"
TOLD = "COLLAGE_GPU_CAPABILITY"
"""Environment variable with the capability of another machine's GPU, for processes that build for it."""
OLDEST = 80
"""Older GPUs have no bfloat16, no TF32 and no asynchronous copies."""


@functools.cache
def architecture() -> str:
    """Return nvcc's name of the target architecture, e.g. "sm_90".

    Raises:
        BackendError: the GPU is too old, or nvcc has no architecture for it.
    """
    return f"sm_{chosen(_capability(), _known())}"


def tf32_reason() -> str:
    """Return why products are not rounded to TF32 on this machine, "" where they may be."""
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
    """Set the target of this process and its children; without effect on a machine with a GPU."""
    os.environ[TOLD] = capability
    architecture.cache_clear()


def architecture_availability() -> Availability:
    """Tell whether code can be generated for the machine's GPU."""
    try:
        architecture()
    except BackendError as error:
        return Availability(str(error))
    return Availability("")


def chosen(capability: int, compiler_knows: tuple[int, ...]) -> int:
    """Return the target capability for a GPU of `capability`.

    Args:
        capability: the GPU's compute capability, e.g. 86.
        compiler_knows: capabilities of the compiler; empty if unknown.

    Raises:
        BackendError: the GPU is too old, or newer than the compiler.

    >>> chosen(121, (80, 90, 100, 120))
    120
    """
    if capability < OLDEST:
        raise BackendError(
            f"this GPU has compute capability {capability / 10:.1f}; the least is {OLDEST / 10:.1f}"
        )
    fitting = [
        supported
        for supported in compiler_knows
        if supported // 10 == capability // 10 and supported <= capability
    ]
    if compiler_knows and not fitting:
        raise BackendError(
            f"this nvcc generates no code for compute capability {capability / 10:.1f}: install a newer one"
        )
    return max(fitting, default=capability)


@functools.cache
def _known() -> tuple[int, ...]:
    nvcc = find_nvcc()
    if nvcc is None:
        return ()
    done = subprocess.run(
        [nvcc.program, "--list-gpu-code"], capture_output=True, text=True, check=False
    )
    return tuple(sorted(map(int, re.findall(r"^sm_(\d+)$", done.stdout, re.MULTILINE))))
