"""A simulated GPU: test doubles of the CUDA driver, its runtime, NVML, cuBLASLt, cuDNN, CUTLASS and nvcc,
built with g++, and ONNX Runtime's providers for it, computed by the real library on the CPU.

Programs find them through CUDA_HOME, the loader's path and COLLAGE_LIB_*, like a user's libraries, so all
of Collage runs on it unchanged, in a separate process. The host cannot access device memory, allocations
are filled with not-a-number, a kernel with a host pointer loses the context, TVM's kernels are compiled
from their CUDA C++ and run thread by thread, and every call is logged. It gives no information about speed.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from collage.runtime.plugin import library_path

HERE = Path(__file__).parent
NATIVE = HERE.parents[1] / "native"
LIBRARIES = {
    "libcudart.so.13": ("cudart.cc",),
    "libcuda.so.1": ("cuda.cc",),
    "libnvidia-ml.so.1": ("nvml.cc",),
    "libcublasLt.so.13": ("cublaslt.cc",),
    "libcudnn.so.9": ("cudnn.cc", "cudnn_graph.cc", "cudnn_engines.cc", "cudnn_compute.cc"),
    "libnvinfer.so.10": ("tensorrt.cc",),
    "libonnxruntime.so.1": ("onnxruntime.cc",),
}
OPENED = {
    "cudart": "libcudart.so.13", "cublaslt": "libcublasLt.so.13", "cudnn": "libcudnn.so.9",
    "nvinfer": "libnvinfer.so.10", "onnxruntime": "libonnxruntime.so.1", "cublas": "missing",
}  # fmt: skip
"""Those that Collage opens by a name of its own: wheels of the real ones may be installed. Nothing here
calls cuBLAS, and the real one does not load beside the double of cuBLASLt."""
PROVIDERS = ("cuda", "tensorrt")
READ_BY_WORKERS = tuple(
    f"SIMULATED_{name}"
    for name in ("GPU_LOG", "GPU_CAPABILITY", "NVML", "ONNXRUNTIME", "ONNXRUNTIME_BROKEN",
                 "ONNXRUNTIME_FAILS", "ONNXRUNTIME_LOSES", "ONNXRUNTIME_REFUSES")
)  # fmt: skip
HEADERS = ("gpu.h", "half.h", "kernel.h", "numbers.h")
CUTLASS = (
    "cutlass.h", "epilogue/thread/activation.h", "epilogue/thread/linear_combination_generic.h",
    "gemm/device/gemm_universal.h", "conv/kernel/default_conv2d_fprop.h",
    "conv/device/implicit_gemm_convolution.h",
)  # fmt: skip
"""Those of CUTLASS's headers that generated code names; one file declares all that it uses."""


def build(folder: Path) -> Path:
    """Make a toolkit (`bin`, `include`, `lib`) in `folder`, and return the folder."""
    for name in ("bin", "include", "lib"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    shutil.copy(HERE / "nvcc", folder / "bin" / "nvcc")
    (folder / "bin" / "nvcc").chmod(0o755)
    for name in HEADERS:
        shutil.copy(HERE / name, folder / "include" / name)
    for name in CUTLASS:
        header = cutlass_home(folder) / "include" / "cutlass" / name
        header.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(HERE / "cutlass.h", header)
    versions = "".join(f"#define CUTLASS_{part} 0\n" for part in ("MAJOR", "MINOR", "PATCH"))
    (cutlass_home(folder) / "include" / "cutlass" / "version.h").write_text(versions)
    for library, sources in LIBRARIES.items():
        _compile([HERE / source for source in sources], folder / "lib" / library)
    subprocess.run([folder / "bin" / "nvcc", "--prepare"], check=True)
    for provider in PROVIDERS:
        provider_file(folder, provider).touch()
    return folder


def cutlass_home(toolkit: Path) -> Path:
    """Return the CUTLASS_HOME of a process with CUTLASS; others have none."""
    return toolkit / "cutlass"


def provider_file(toolkit: Path, provider: str) -> Path:
    """Return the provider's file; without it ONNX Runtime has no such provider."""
    return toolkit / "lib" / f"libonnxruntime_providers_{provider}.so"


def environment(toolkit: Path, log: Path) -> dict[str, str]:
    """Return the environment of a process with the simulated GPU; its log is `log`."""
    lib = toolkit / "lib"
    return {
        **os.environ,
        "CUDA_HOME": str(toolkit),
        "CUTLASS_HOME": str(toolkit),  # has none
        "LD_LIBRARY_PATH": str(lib),
        "COLLAGE_WORKER_ENV": ",".join(READ_BY_WORKERS),
        "SIMULATED_GPU_LOG": str(log),
        "SIMULATED_ONNXRUNTIME": str(library_path("onnxruntime")),
        "PYTHONPATH": str(HERE / "python"),
        **{f"COLLAGE_LIB_{name.upper()}": str(lib / file) for name, file in OPENED.items()},
    }


def _compile(sources: Sequence[Path], library: Path) -> None:
    versions = library.parent / f"{library.name}.map"
    versions.write_text(f"{library.name.replace('-', '_')} {{ global: *; }};\n")
    base = library.name.startswith("libcudart")
    linked = [] if base else ["-L", str(library.parent), "-l:libcudart.so.13"]
    command = [
        "g++", "-std=c++17", "-O1", "-shared", "-fPIC", f"-I{HERE}", f"-I{NATIVE}",
        *map(str, sources), *linked,
        f"-Wl,-soname,{library.name}", f"-Wl,--version-script,{versions}", "-Wl,-rpath,$ORIGIN",
        "-o", str(library),
    ]  # fmt: skip
    subprocess.run(command, check=True)
