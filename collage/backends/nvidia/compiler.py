"""nvcc: where it is, what it needs, and compiling with it once for each content.

nvcc comes with a CUDA toolkit or from PyPI, where three wheels share the folder `nvidia/cu13`. A result
lies in the cache under the digest of source, flags and compiler version, so a kernel is compiled once
for all models and runs, and two processes that compile the same one both end with a whole file.
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

TIMEOUT_S = 600.0
PIP = "pip install nvidia-cuda-nvcc nvidia-cuda-cccl nvidia-cuda-runtime"
CUTLASS_PIP = "pip install nvidia-cutlass"


@dataclass(frozen=True)
class Nvcc:
    """A compiler: its program, the folder of its toolkit, its version (e.g. "13.5")."""

    program: Path
    home: Path
    version: str


@dataclass(frozen=True)
class CudaSource:
    """CUDA C++ to compile; `flags` come after the standard ones."""

    text: str
    flags: tuple[str, ...] = ()

    def digest(self, nvcc: Nvcc) -> str:
        whole = "\0".join((nvcc.version, *self.flags, self.text))
        return hashlib.sha256(whole.encode()).hexdigest()


@functools.cache
def find_nvcc() -> Nvcc | None:
    """Find nvcc: CUDA_HOME's, that on the path, that of the wheels; None when there is none."""
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
    found = find_nvcc()
    return Availability("", {"nvcc": found.version}) if found else Availability(f"no nvcc: {PIP}")


@functools.cache
def cutlass_include() -> Path | None:
    """Find CUTLASS's headers, under CUTLASS_HOME or else in the wheel; None when there are none."""
    spec = find_spec("cutlass_library")
    wheel = (spec.submodule_search_locations or []) if spec else []
    candidates = [Path(root) / "source" / "include" for root in wheel]
    if home := os.environ.get("CUTLASS_HOME", ""):
        candidates = [Path(home) / "include"]
    return next((one for one in candidates if (one / "cutlass" / "cutlass.h").is_file()), None)


def cutlass_availability() -> Availability:
    """Tell whether CUTLASS's headers are here, with their version."""
    include = cutlass_include()
    if include is None:
        return Availability(f"no CUTLASS headers: {CUTLASS_PIP}")
    text = (include / "cutlass" / "version.h").read_text()
    parts = [re.search(rf"CUTLASS_{one}\s+(\d+)", text) for one in ("MAJOR", "MINOR", "PATCH")]
    return Availability("", {"cutlass": ".".join(part.group(1) for part in parts if part)})


def compile_cuda(source: CudaSource, suffix: str, mode: Sequence[str], cache_dir: Path) -> Path:
    """Compile `source` and return the file, from the cache where it was compiled before.

    Args:
        source: the program.
        suffix: of the result, e.g. ".cubin".
        mode: flags that say what is made, e.g. ["-cubin"] or ["-shared"].
        cache_dir: folder of the cache; made when it is missing.

    Raises:
        BackendError: there is no nvcc, or it refuses the source, with its first error.
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
        file, made = Path(folder) / "kernel.cu", Path(folder) / f"kernel{suffix}"
        file.write_text(source.text)
        _run_nvcc(nvcc, [*mode, *source.flags, "-o", str(made), str(file)])
        os.replace(made, result)
    return result


def nvcc_environment(nvcc: Nvcc) -> dict[str, str]:
    """Variables with which other tools, TVM among them, find this nvcc."""
    path = os.pathsep.join((str(nvcc.program.parent), os.environ.get("PATH", "")))
    return {"CUDA_HOME": str(nvcc.home), "CUDA_PATH": str(nvcc.home), "PATH": path}


def _run_nvcc(nvcc: Nvcc, arguments: Sequence[str]) -> None:
    includes = [nvcc.home / "include", nvcc.home / "include" / "cccl", nvcc.home / "cccl"]
    libraries = [nvcc.home / "lib", nvcc.home / "lib64"]
    command = [
        str(nvcc.program), "-std=c++17", "-O3", *(f"-I{one}" for one in includes if one.is_dir()),
        *(f"-L{one}" for one in libraries if one.is_dir()), *arguments,
    ]  # fmt: skip
    try:
        environment = child_environment() | nvcc_environment(nvcc)
        done = run_compiler(command, timeout_s=TIMEOUT_S, environment=environment)
    except subprocess.TimeoutExpired:
        raise BackendError(f"nvcc took longer than {TIMEOUT_S:g} s") from None
    if done.returncode:
        lines = (done.stderr + done.stdout).splitlines()
        errors = [line for line in lines if "error" in line] or lines[-1:]
        raise BackendError(f"nvcc: {errors[0].strip() if errors else 'failed'}")


def _version(program: Path) -> str:
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"release (\d+\.\d+)", done.stdout)
    return found.group(1) if found else ""
