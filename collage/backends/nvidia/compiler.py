"""nvcc: its location, its headers, and a cache of compiled files.

nvcc comes with a CUDA toolkit or from PyPI (three wheels with a common folder `nvidia/cu13`). The cache key
is the digest of source, flags and compiler version: a kernel is compiled once for all models and runs.
Files are renamed into place, so two processes that compile the same kernel both get a complete file.
"""

import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from collage.backends.base import Availability
from collage.backends.nvidia.libraries import wheel_folders
from collage.errors import BackendError
from collage.runtime.child_environment import child_environment
from collage.runtime.process_group import run_compiler

NVCC_TIMEOUT_S = 600.0
NVCC_PIP = "pip install nvidia-cuda-nvcc nvidia-cuda-cccl nvidia-cuda-runtime"
CUTLASS_PIP = "pip install nvidia-cutlass"


@dataclass(frozen=True)
class Nvcc:
    """A CUDA compiler: its program, the folder of its toolkit, its version (e.g. "13.5")."""

    program: Path
    home: Path
    version: str


@dataclass(frozen=True)
class CudaSource:
    """CUDA C++ with its compiler flags, in addition to the standard ones."""

    text: str
    flags: tuple[str, ...] = ()

    def digest(self, nvcc: Nvcc) -> str:
        text = "\0".join((nvcc.version, *self.flags, self.text))
        return hashlib.sha256(text.encode()).hexdigest()


@functools.cache
def find_nvcc() -> Nvcc | None:
    """Find nvcc in CUDA_HOME, on the path, in the wheels, in this order; None without one."""
    home = os.environ.get("CUDA_HOME", "")
    on_path = shutil.which("nvcc")
    candidates = [Path(home) / "bin" / "nvcc"] if home else []
    candidates += [Path(on_path)] if on_path else []
    candidates += [lib.parent / "bin" / "nvcc" for lib in wheel_folders("nvidia")]
    for program in candidates:
        if program.is_file() and (version := _version(program)):
            return Nvcc(program, program.resolve().parent.parent, version)
    return None


def nvcc_availability() -> Availability:
    """Tell whether there is a CUDA compiler."""
    nvcc = find_nvcc()
    return (
        Availability("", {"nvcc": nvcc.version}) if nvcc else Availability(f"no nvcc: {NVCC_PIP}")
    )


@functools.cache
def cutlass_include() -> Path | None:
    """Find CUTLASS's headers in CUTLASS_HOME, else in the wheel; None without them."""
    spec = find_spec("cutlass_library")
    wheel = (spec.submodule_search_locations or []) if spec else []
    candidates = [Path(root) / "source" / "include" for root in wheel]
    if home := os.environ.get("CUTLASS_HOME", ""):
        candidates = [Path(home) / "include"]
    return next(
        (folder for folder in candidates if (folder / "cutlass" / "cutlass.h").is_file()), None
    )


def cutlass_availability() -> Availability:
    """Tell whether CUTLASS's headers are installed, with their version."""
    include = cutlass_include()
    if include is None:
        return Availability(f"no CUTLASS headers: {CUTLASS_PIP}")
    text = (include / "cutlass" / "version.h").read_text()
    parts = [
        re.search(rf"CUTLASS_{part_name}\s+(\d+)", text)
        for part_name in ("MAJOR", "MINOR", "PATCH")
    ]
    return Availability("", {"cutlass": ".".join(part.group(1) for part in parts if part)})


def compile_cuda(source: CudaSource, suffix: str, mode: Sequence[str], cache_dir: Path) -> Path:
    """Compile `source` and return the file, from the cache if possible.

    Args:
        source: the program.
        suffix: file suffix of the result, e.g. ".cubin".
        mode: flags for the kind of result, e.g. ["-cubin"] or ["-shared"].
        cache_dir: folder of the cache, created if missing.

    Raises:
        BackendError: nvcc is missing or refuses the source; with its first error.
    """
    nvcc = find_nvcc()
    if nvcc is None:
        raise BackendError(nvcc_availability().reason)
    key = CudaSource(source.text, (*mode, *source.flags)).digest(nvcc)
    result = cache_dir / f"{key}{suffix}"
    if result.is_file():
        return result
    cache_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_dir, prefix="nvcc-") as folder:
        file, output = Path(folder) / "kernel.cu", Path(folder) / f"kernel{suffix}"
        file.write_text(source.text)
        _run_nvcc(nvcc, [*mode, *source.flags, "-o", str(output), str(file)])
        os.replace(output, result)
    return result


def nvcc_environment(nvcc: Nvcc) -> dict[str, str]:
    """Return the environment variables for other tools, TVM among them, to find this nvcc."""
    path = os.pathsep.join((str(nvcc.program.parent), os.environ.get("PATH", "")))
    return {"CUDA_HOME": str(nvcc.home), "CUDA_PATH": str(nvcc.home), "PATH": path}


def _run_nvcc(nvcc: Nvcc, arguments: Sequence[str]) -> None:
    includes = [nvcc.home / "include", nvcc.home / "include" / "cccl", nvcc.home / "cccl"]
    libraries = [nvcc.home / "lib", nvcc.home / "lib64"]
    command = [
        str(nvcc.program), "-std=c++17", "-O3", *(f"-I{folder}" for folder in includes if folder.is_dir()),
        *(f"-L{folder}" for folder in libraries if folder.is_dir()), *arguments,
    ]  # fmt: skip
    try:
        environment = child_environment() | nvcc_environment(nvcc)
        done = run_compiler(command, timeout_s=NVCC_TIMEOUT_S, environment=environment)
    except subprocess.TimeoutExpired:
        raise BackendError(f"nvcc took longer than {NVCC_TIMEOUT_S:g} s") from None
    if done.returncode:
        lines = (done.stderr + done.stdout).splitlines()
        errors = [line for line in lines if "error" in line] or lines[-1:]
        raise BackendError(f"nvcc: {errors[0].strip() if errors else 'failed'}")


def _version(program: Path) -> str:
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    match = re.search(r"release (\d+\.\d+)", done.stdout)
    return match.group(1) if match else ""
