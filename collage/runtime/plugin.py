"""Load the C++ plug-in and tell it where the vendor libraries are.

A vendor library is found through the metadata of its Python distribution; the vendor's Python package
is never imported, and the library is opened only when the first kernel needs it. The environment
variable COLLAGE_LIB_<NAME> overrides the path.
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
"""How idle threads wait between two loops. Those of OpenMP run the loops of oneDNN, of the plug-in and of
TVM's kernels: they stay awake for some 50 us, for the next loop is near and waking takes longer, and then
sleep, for other libraries have threads of their own and want the core. TVM's own pool serves a few
functions of its runtime only. Compared by `python -m benchmarks.waiting`."""


@dataclass(frozen=True, slots=True)
class Library:
    """A vendor library: who ships it, its file's name, and what to install when it is missing.

    `requirement` says more than the distribution's name, where that does not do. `alternatives` are
    distributions that have the library too.
    """

    distribution: str
    glob: str
    requirement: str = ""
    toolkit: bool = False
    """A CUDA toolkit has it too, in folders where no wheel is."""
    alternatives: tuple[str, ...] = ()

    @property
    def installed(self) -> str:
        """The distribution that ships it here; that of the first choice where none is installed."""
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
"""What ONNX Runtime's providers for a GPU call, each before those that call it."""
FULL_PRECISION = {"NVIDIA_TF32_OVERRIDE": "0"}
"""Keeps NVIDIA's libraries from TF32, whatever kernels ask for. TensorRT has no option for it, so this is set
while it builds, and only then: a process that runs kernels has it not, so that those which may use TF32
can, and the others say themselves that they do not."""


def register_library(name: str, distribution: str, glob: str, requirement: str = "") -> None:
    """Add a vendor library for a backend of the user.

    Args:
        name: what kernels call it (`libraries` in a blob's header).
        distribution: the Python distribution that ships it.
        glob: matches the file's name, e.g. "libfoo.so.*".
        requirement: what to install, when it is more than the distribution's name.

    Raises:
        BackendError: the name is that of another library.
    """
    library = Library(distribution, glob, requirement)
    registered = LIBRARIES.setdefault(name, library)
    if (registered.distribution, registered.glob) != (distribution, glob):
        raise BackendError(f"the library name {name!r} is taken by {registered.distribution}")
    if _load.cache_info().currsize:
        _announce(name)


def library_names() -> tuple[str, ...]:
    """Names of all known libraries, installed or not."""
    return tuple(sorted(LIBRARIES))


def library_distribution(name: str) -> str:
    """The Python distribution that ships library `name`. Raises BackendError for an unknown name."""
    return _library(name).installed


def library_file(name: str) -> str:
    """What matches the library's file name. Raises BackendError for an unknown name."""
    return _library(name).glob


def library_version(name: str) -> str:
    """Version of the installed distribution, or of a toolkit's file as its name says it.

    Raises:
        BackendError: neither is here.
    """
    try:
        return distribution(_library(name).installed).version
    except PackageNotFoundError:
        for file in _toolkit_files(_library(name)):
            return file.resolve().name.partition(".so.")[2]
        raise BackendError(_missing(name)) from None


def library_override(name: str) -> str:
    """The path in COLLAGE_LIB_<NAME>, "" when it is not set."""
    return os.environ.get(_variable(name), "")


def library_path(name: str) -> Path:
    """The library's file. Raises BackendError that says what to install when there is none."""
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
    """Variables that tell a child process, which imports no backend, where the libraries are."""
    return {
        _variable(name): str(library_path(name))
        for name in library_names()
        if not library_reason(name)
    }


def open_libraries(names: Sequence[str]) -> None:
    """Open the libraries that are in a place which we know, so that others which need them find them."""
    for name in names:
        if not library_reason(name):
            ctypes.CDLL(str(library_path(name)))


def library_reason(name: str) -> str:
    """Why library `name` cannot be used on this machine; "" when it can."""
    try:
        path = library_path(name)
    except BackendError as error:
        return str(error)
    return "" if path.exists() else f"{_variable(name)} names {path}, which does not exist"


def thread_environment(threads: int) -> dict[str, str]:
    """Return what a process that runs kernels with so many threads finds in its environment."""
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

    TVM's Python package tries it when it is imported, but finds the CUDA runtime on the loader's path
    only; that of a wheel is opened here first.

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
    """The compiler's own copy where it is installed: two copies in one process cannot live."""
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
    """Yield the library's files in a CUDA toolkit, and where the loader was told to look."""
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
