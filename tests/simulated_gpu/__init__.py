"""A simulated GPU: doubles of the CUDA driver and runtime, cuBLASLt, cuDNN, NVML and nvcc, built with g++.

Programs find them as they find the real ones (CUDA_HOME, the loader's path), so what runs on it is the
whole of Collage in a process of its own, unchanged. Device memory cannot be touched by the host,
allocations hold not-a-number, a kernel that is handed a pointer of the host loses the context, kernels that
TVM generates are compiled from their CUDA C++ and run thread by thread, and all is logged. It says
nothing about speed.
"""

import os
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
LIBRARIES = {
    "cudart.cc": "libcudart.so.13",
    "cuda.cc": "libcuda.so.1",
    "nvml.cc": "libnvidia-ml.so.1",
    "cublaslt.cc": "libcublasLt.so.13",
    "cudnn.cc": "libcudnn.so.9",
}
HEADERS = ("gpu.h", "half.h", "kernel.h", "numbers.h")


def build(folder: Path) -> Path:
    """Make a toolkit (`bin`, `include`, `lib`) in `folder`, and return the folder."""
    for name in ("bin", "include", "lib"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    shutil.copy(HERE / "nvcc", folder / "bin" / "nvcc")
    (folder / "bin" / "nvcc").chmod(0o755)
    for name in HEADERS:
        shutil.copy(HERE / name, folder / "include" / name)
    for source, library in LIBRARIES.items():
        _compile(HERE / source, folder / "lib" / library)
    return folder


def environment(toolkit: Path, log: Path) -> dict[str, str]:
    """Return the variables with which a new process finds the simulated GPU; it logs to `log`."""
    lib = toolkit / "lib"
    return {
        **os.environ,
        "CUDA_HOME": str(toolkit),
        "LD_LIBRARY_PATH": str(lib),
        "SIMULATED_GPU_LOG": str(log),
    }


def _compile(source: Path, library: Path) -> None:
    versions = library.parent / f"{library.name}.map"
    versions.write_text(f"{library.name.replace('-', '_')} {{ global: *; }};\n")
    linked = [] if source.name == "cudart.cc" else ["-L", str(library.parent), "-l:libcudart.so.13"]
    command = [
        "g++", "-std=c++17", "-O1", "-shared", "-fPIC", f"-I{HERE}", str(source), *linked,
        f"-Wl,-soname,{library.name}", f"-Wl,--version-script,{versions}", "-Wl,-rpath,$ORIGIN",
        "-o", str(library),
    ]  # fmt: skip
    subprocess.run(command, check=True)
