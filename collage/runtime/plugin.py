"""The C++ plug-in, and the paths of the vendor libraries for it.

A vendor library is found through the metadata of its Python distribution. The vendor's Python package is
never imported, and the library is opened by the first kernel with a call of it. The environment variable
COLLAGE_LIB_<NAME> overrides the path.
"""

import ctypes
import functools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

from collage.errors import BackendError
from collage.telemetry import TELEMETRY_OFF

LIBRARY_FOLDER = Path(__file__).parent / "lib"
WAITING = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "5000",
    "TVM_THREAD_POOL_SPIN_COUNT": "10",
}
"""Waiting of idle threads between two loops. OpenMP's threads run the loops of oneDNN, the plug-in and
TVM's kernels. They spin for some 50 us, because the next loop is near and waking takes longer. Then they
sleep, because other libraries have threads of their own and need the core. TVM's own pool serves a few
functions of its runtime only. Comparison: `python -m benchmarks.waiting`."""


@dataclass(frozen=True, slots=True)
class Library:
    """A vendor library.

    Attributes:
        distribution: Python distribution with the library.
        glob: pattern of the file's name.
        requirement: requirement to install, with versions; "" is the distribution's name.
        toolkit: True if a CUDA toolkit has the library too, outside any distribution.
        alternatives: other distributions with the library.
    """

    distribution: str
    glob: str
    requirement: str = ""
    toolkit: bool = False
    alternatives: tuple[str, ...] = ()

    @property
    def installed(self) -> str:
        """Name of the installed distribution; the preferred one if none is installed."""
        for name in (self.distribution, *self.alternatives):
            try:
                distribution(name)
            except PackageNotFoundError:
                continue
            return name
        return self.distribution


LIBRARIES = {
    "onnxruntime": Library(
        "onnxruntime",
        "libonnxruntime.so.*",
        "onnxruntime>=1.31,<1.32",
        alternatives=("onnxruntime-gpu",),
    ),
    "openvino": Library("openvino", "libopenvino_c.so.*", "openvino>=2026.4,<2026.5"),
    "onednn": Library("onednn-cpu-gomp", "libdnnl.so.3", "onednn-cpu-gomp==2023.2.0"),
    "cublaslt": Library("nvidia-cublas", "libcublasLt.so.*", "nvidia-cublas>=13", True),
    "cudart": Library("nvidia-cuda-runtime", "libcudart.so.*", "nvidia-cuda-runtime>=13", True),
    "cudnn": Library("nvidia-cudnn-cu13", "libcudnn.so.*", "nvidia-cudnn-cu13>=9", True),
    "cublas": Library("nvidia-cublas", "libcublas.so.*", "nvidia-cublas>=13", True),
    "curand": Library("nvidia-curand", "libcurand.so.*", "nvidia-curand>=10", True),
    "nvinfer": Library("tensorrt-cu13-libs", "libnvinfer.so.*", "tensorrt-cu13-libs>=10", True),
    "nvonnxparser": Library(
        "tensorrt-cu13-libs", "libnvonnxparser.so.*", "tensorrt-cu13-libs>=10", True
    ),
    "nvrtc": Library("nvidia-cuda-nvrtc", "libnvrtc.so.*", "nvidia-cuda-nvrtc>=13", True),
    "nvrtc_builtins": Library(
        "nvidia-cuda-nvrtc", "libnvrtc-builtins.so.*", "nvidia-cuda-nvrtc>=13", True
    ),
}

PROVIDER_LIBRARIES = {
    "onnxruntime-cuda": ("cudart", "cublaslt", "cublas", "curand", "cudnn"),
    "tensorrt": ("cudart", "cublaslt", "cublas", "cudnn", "nvinfer", "nvonnxparser"),
}
"""Libraries of ONNX Runtime's GPU providers, dependencies first."""
FULL_PRECISION = {"NVIDIA_TF32_OVERRIDE": "0"}
"""Disables TF32 in NVIDIA's libraries for all kernels. TensorRT has no option for it, so this is set during
its builds only. A process for kernels does not set it: kernels with TF32 need it enabled, and the others
disable it themselves."""


def register_library(name: str, distribution: str, glob: str, requirement: str = "") -> None:
    """Add a vendor library for a user's backend.

    Args:
        name: name in kernels (`libraries` in a blob's header).
        distribution: Python distribution with the library.
        glob: pattern of the file's name, e.g. "libfoo.so.*".
        requirement: requirement to install, with versions; "" is the distribution's name.

    Raises:
        BackendError: the name belongs to another library.
    """
    library = Library(distribution, glob, requirement)
    registered = LIBRARIES.setdefault(name, library)
    if (registered.distribution, registered.glob) != (distribution, glob):
        raise BackendError(f"the library name {name!r} is taken by {registered.distribution}")
    if _load.cache_info().currsize:
        _announce(name)


def library_names() -> tuple[str, ...]:
    """Return the names of all registered libraries, installed or not."""
    return tuple(sorted(LIBRARIES))


def library_distribution(name: str) -> str:
    """Return the Python distribution of library `name`. Raises BackendError for an unknown name."""
    return _library(name).installed


def library_file(name: str) -> str:
    """Return the pattern of the library's file name. Raises BackendError for an unknown name."""
    return _library(name).glob


def library_version(name: str) -> str:
    """Return the version of the installed distribution, or the version in a toolkit file's name.

    Raises:
        BackendError: the library is not installed.
    """
    try:
        return distribution(_library(name).installed).version
    except PackageNotFoundError:
        for file in _toolkit_files(_library(name)):
            return file.resolve().name.partition(".so.")[2]
        raise BackendError(_missing(name)) from None


def library_override(name: str) -> str:
    """Return the path in COLLAGE_LIB_<NAME>, or ""."""
    return os.environ.get(_variable(name), "")


def library_path(name: str) -> Path:
    """Return the library's file. Raises BackendError, with the requirement to install, without one."""
    if override := library_override(name):
        return Path(override)
    library = _library(name)
    for file in _files(library.installed):
        if fnmatch(file.name, library.glob) and file.exists():
            return file.resolve()
    for file in _toolkit_files(library):
        return file
    raise BackendError(_missing(name))


def library_environment() -> dict[str, str]:
    """Return COLLAGE_LIB_<NAME> variables for a child process without backends."""
    return {
        _variable(name): str(library_path(name))
        for name in library_names()
        if not library_reason(name)
    }


def open_libraries(names: Sequence[str]) -> None:
    """Open the available libraries, so that dependent libraries find them in the process."""
    for name in names:
        if not library_reason(name):
            ctypes.CDLL(str(library_path(name)))


def library_reason(name: str) -> str:
    """Return the reason why library `name` cannot be used on this machine, or ""."""
    try:
        path = library_path(name)
    except BackendError as error:
        return str(error)
    return "" if path.exists() else f"{_variable(name)} names {path}, which does not exist"


def thread_environment(threads: int) -> dict[str, str]:
    """Return the environment variables of a process with `threads` threads for kernels."""
    count = str(threads)
    return {**WAITING, **TELEMETRY_OFF, "OMP_NUM_THREADS": count, "TVM_NUM_THREADS": count}


def load_plugin() -> None:
    """Load TVM's runtime and the plug-in into this process, once.

    Sets WAITING unless the user chose. Raises BackendError when the plug-in was not built.
    """
    _load()


@functools.cache
def load_cuda_runtime() -> None:
    """Load TVM's runtime for NVIDIA GPUs, once: virtual machines can then use `cuda` devices.

    The import of TVM's Python package tries it, but finds the CUDA runtime on the loader's path only. So
    the CUDA runtime of a wheel is opened first.

    Raises:
        BackendError: the driver, the CUDA runtime or TVM's library for it is missing.
    """
    load_plugin()
    import tvm_ffi

    if tvm_ffi.get_global_func("device_api.cuda", allow_missing=True) is not None:
        return
    library = _tvm_runtime().with_name("libtvm_runtime_cuda.so")
    try:
        ctypes.CDLL(str(library_path("cudart")), mode=os.RTLD_GLOBAL | os.RTLD_NOW)
        ctypes.CDLL(str(library), mode=os.RTLD_LOCAL | os.RTLD_NOW)
    except OSError as error:
        raise BackendError(f"TVM's runtime for GPUs cannot be loaded: {error}") from error


@functools.cache
def _load() -> None:
    for name, value in WAITING.items():
        os.environ.setdefault(name, value)
    import tvm_ffi

    plugin = LIBRARY_FOLDER / "libcollage_runtime.so"
    if not plugin.exists():
        raise BackendError(
            f"the plug-in is not built: {plugin} is missing. Run `make setup`, or install a wheel."
        )
    ctypes.CDLL(str(_tvm_runtime()), mode=os.RTLD_GLOBAL | os.RTLD_NOW)
    if tvm_ffi.get_global_func("collage.create_module", allow_missing=True) is None:
        ctypes.CDLL(str(plugin), mode=os.RTLD_GLOBAL | os.RTLD_NOW)
    for name in library_names():
        _announce(name)


def _announce(name: str) -> None:
    import tvm_ffi

    if not library_reason(name):
        tvm_ffi.get_global_func("collage.set_library")(name, str(library_path(name)))


def _tvm_runtime() -> Path:
    """Return the compiler's copy of TVM's runtime if installed: two copies in a process conflict."""
    spec = find_spec("tvm")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        candidate = Path(folder) / "lib" / "libtvm_runtime.so"
        if candidate.exists():
            return candidate
    return LIBRARY_FOLDER / "libtvm_runtime.so"


def _library(name: str) -> Library:
    try:
        return LIBRARIES[name]
    except KeyError:
        names = ", ".join(library_names())
        raise BackendError(f"no library is called {name!r}; known: {names}") from None


def _toolkit_files(library: Library) -> Iterator[Path]:
    """Yield the library's files in a CUDA toolkit and in LD_LIBRARY_PATH."""
    if not library.toolkit:
        return
    folders = [
        Path(folder) for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder
    ]
    for home in filter(None, (os.environ.get("CUDA_HOME"), "/usr/local/cuda")):
        folders += [Path(home) / "lib64", Path(home) / "lib"]
    for folder in folders:
        yield from sorted(file for file in folder.glob(library.glob) if file.suffix != ".map")


def _files(name: str) -> Iterator[Path]:
    try:
        package = distribution(name)
    except PackageNotFoundError:
        return
    for file in package.files or []:
        yield Path(str(package.locate_file(file)))


def _missing(name: str) -> str:
    requirement = _library(name).requirement or _library(name).distribution
    return (
        f"the library {name!r} is not installed: run `pip install '{requirement}'`, "
        f"or set {_variable(name)} to its path"
    )


def _variable(name: str) -> str:
    plain = "".join(letter if letter.isalnum() else "_" for letter in name)
    return f"COLLAGE_LIB_{plain.upper()}"
