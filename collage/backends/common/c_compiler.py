"""The machine's C compiler: `$CC`, else `cc`. It makes shared libraries of C code, in memory."""

import functools
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from collage.errors import BackendError
from collage.runtime.child_environment import child_environment
from collage.runtime.process_group import run_compiler

ALWAYS = ("-fPIC", "-std=gnu17", "-Werror=implicit-function-declaration")
PROTECTED = ("-Wl,-z,relro,-z,now,-z,noexecstack",)
"""A loaded kernel has a read-only function table and no executable stack."""
COMPILER_TIMEOUT_S = 60.0
SHOWN_ERRORS = 3
MAX_BUILDS = 256


def compiler() -> tuple[str, ...]:
    """Return the command of the C compiler. Raises BackendError without one."""
    command = tuple(shlex.split(os.environ.get("CC", ""))) or ("cc",)
    if shutil.which(command[0]) is None:
        origin = " ($CC)" if os.environ.get("CC") else ""
        raise BackendError(
            f"there is no C compiler {command[0]!r}{origin}: install gcc or clang, or name one with $CC"
        )
    return command


@functools.cache
def compiler_version(command: tuple[str, ...]) -> str:
    """Return the first line of the compiler's `--version`. Raises BackendError where it fails."""
    try:
        done = subprocess.run(
            [*command, "--version"],
            capture_output=True,
            text=True,
            timeout=COMPILER_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise BackendError(f"the C compiler {command[0]!r} does not work: {error}") from None
    return next(iter(done.stdout.splitlines()), "?").strip()


@functools.lru_cache(MAX_BUILDS)
def build(
    command: tuple[str, ...], flags: tuple[str, ...], code: str, link_flags: tuple[str, ...] = ()
) -> bytes:
    """Compile `code` and return the shared library; equal calls compile once.

    Compilation and linking are separate: in one step with -ffast-math, GCC links start-up code into the
    library; it rounds denormals to zero in the whole loading process.

    Raises:
        BackendError: the compiler fails; with its first errors.
    """
    with tempfile.TemporaryDirectory(prefix="collage-cc-") as folder:
        compiled, linked = f"{folder}/kernel.o", f"{folder}/kernel.so"
        _run([*command, *ALWAYS, *flags, "-c", "-x", "c", "-", "-o", compiled], code)
        _run([*command, "-shared", *PROTECTED, compiled, "-o", linked, *link_flags])
        return Path(linked).read_bytes()


def _run(command: Sequence[str], code: str = "") -> None:
    environment = child_environment() | {"LC_ALL": "C"}
    try:
        done = run_compiler(
            command, timeout_s=COMPILER_TIMEOUT_S, environment=environment, text=code
        )
    except subprocess.TimeoutExpired:
        raise BackendError(f"the C compiler took more than {COMPILER_TIMEOUT_S:g} s") from None
    if done.returncode:
        raise BackendError(f"the C compiler refuses it: {first_errors(done.stderr)}")


def first_errors(output: str) -> str:
    """Return the errors in a compiler's output, on one line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("collect2:")]
    errors = [line for line in lines if "error:" in line] or lines
    return "; ".join(errors[:SHOWN_ERRORS]) or "it does not say why"
