"""Is a CUDA library here? Found as the plug-in finds it or on the loader's path, and opened to be sure.

A file that lies there need not load (a driver library of another kernel, a missing dependency), so each
library is opened with dlopen and asked for its version. The wheels of PyPI put libraries under
`nvidia/<package>/lib`, CUDA 13 all of them under `nvidia/cu13/lib`; no loader looks there by itself.
"""

import ctypes
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from collage.backends.base import Availability
from collage.errors import BackendError
from collage.runtime.gpu import driver_version, open_driver
from collage.runtime.plugin import library_path, library_reason


@dataclass(frozen=True)
class Need:
    """A shared library that a toolchain opens.

    Attributes:
        name: what people call it.
        sonames: file names that will do, best first.
        advice: what to install when there is none.
        version_function: a function of the library without arguments that returns its version.
        library: what the plug-in calls it (`runtime.plugin.LIBRARIES`): what it uses comes first.
        package: the Python package in whose folder it lies, where that is not `nvidia`.
    """

    name: str
    sonames: tuple[str, ...]
    advice: str
    version_function: str = ""
    library: str = ""
    package: str = "nvidia"


@dataclass(frozen=True)
class Opened:
    """A library that was opened, or why none was."""

    path: str
    version: str
    reason: str = ""


CUBLASLT = Need(
    "cuBLAS", ("libcublasLt.so.13", "libcublasLt.so.12"), "pip install nvidia-cublas",
    "cublasLtGetVersion", "cublaslt",
)  # fmt: skip
CUDART = Need(
    "the CUDA runtime", ("libcudart.so.13", "libcudart.so.12"), "pip install nvidia-cuda-runtime",
    library="cudart",
)  # fmt: skip
CUDNN = Need(
    "cuDNN", ("libcudnn.so.9",), "pip install nvidia-cudnn-cu13", "cudnnGetVersion", "cudnn"
)
TENSORRT = Need(
    "TensorRT", ("libnvinfer.so.11", "libnvinfer.so.10"), "pip install tensorrt",
    "getInferLibVersion", "nvinfer", "tensorrt_libs",
)  # fmt: skip


@functools.cache
def driver_reason() -> str:
    """Why no GPU can be used: no driver, or a driver without a device; "" when one can."""
    try:
        open_driver()
    except BackendError as error:
        return str(error)
    return ""


@functools.cache
def open_library(need: Need) -> Opened:
    """Open the library: the plug-in's, else one from a wheel or what the loader finds."""
    failures = []
    for path in _places(need):
        try:
            library = ctypes.CDLL(path)
        except OSError as error:
            if path not in need.sonames:
                failures.append(_words(error))
            continue
        return Opened(path, _version(library, need) or path.partition(".so.")[2])
    names = " or ".join(need.sonames)
    why = f" ({failures[0]})" if failures else ""
    return Opened("", "", f"no {need.name}: {names} cannot be opened{why}: {need.advice}")


def cuda_availability(needs: Sequence[Need], others: Sequence[Availability] = ()) -> Availability:
    """Availability of a toolchain that needs a GPU, libraries, and `others` (a compiler, a plug-in)."""
    opened = {need.name: open_library(need) for need in needs}
    found = (driver_reason(), *(one.reason for one in opened.values()))
    reasons = list(filter(None, (*found, *(other.reason for other in others))))
    if reasons:
        return Availability("; ".join(reasons))
    versions = {need.sonames[0].partition(".")[0]: opened[need.name].version for need in needs}
    for other in others:
        versions |= other.libraries
    return Availability("", {"driver": driver_version(open_driver()), **versions})


def wheel_folders(package: str) -> Iterator[Path]:
    """Yield the folders of a package that may hold libraries; the package is not imported."""
    spec = find_spec(package)
    for root in (spec.submodule_search_locations or []) if spec else []:
        yield Path(root)
        yield from sorted(Path(root).glob("*/lib"), reverse=True)


def _places(need: Need) -> Iterator[str]:
    if need.library and not library_reason(need.library):
        yield str(library_path(need.library))
    for soname in need.sonames:
        yield from map(str, _in_wheels(need.package, soname))
        yield soname


def _in_wheels(package: str, soname: str) -> Iterator[Path]:
    for folder in wheel_folders(package):
        if (folder / soname).is_file():
            yield folder / soname


def _version(library: ctypes.CDLL, need: Need) -> str:
    if not need.version_function:
        return ""
    function = getattr(library, need.version_function, None)
    if function is None:
        return ""
    function.restype = ctypes.c_size_t
    number = int(function())
    return str(number & 0xFFFFFFFF)


def _words(error: OSError) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
