"""Availability of CUDA libraries: found like the plug-in finds them or on the loader's path, then opened.

An existing file may still not load (a driver library of another kernel, a missing dependency), so each
library is opened with dlopen and its version is read from it. PyPI's wheels install libraries in
`nvidia/<package>/lib`, those of CUDA 13 in `nvidia/cu13/lib`; the loader does not search these folders.
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
    """A shared library of a toolchain.

    Attributes:
        name: name in messages.
        sonames: accepted file names, best first.
        advice: command that installs it.
        version_function: name of the library's function for its version, without arguments; "" for none.
        library: the plug-in's name of it (`runtime.plugin.LIBRARIES`), "" for none; its file is preferred.
        package: Python package with the file (default: `nvidia`).
    """

    name: str
    sonames: tuple[str, ...]
    advice: str
    version_function: str = ""
    library: str = ""
    package: str = "nvidia"


@dataclass(frozen=True)
class Opened:
    """An open library, or the reason without one."""

    path: str
    version: str
    reason: str = ""


CUBLASLT = Need(
    "cuBLAS", ("libcublasLt.so.13", "libcublasLt.so.12"), "pip install nvidia-cublas",
    "cublasLtGetVersion", library="cublaslt",
)  # fmt: skip
CUDART = Need(
    "the CUDA runtime", ("libcudart.so.13", "libcudart.so.12"), "pip install nvidia-cuda-runtime",
    library="cudart",
)  # fmt: skip
CUDNN = Need(
    "cuDNN", ("libcudnn.so.9",), "pip install nvidia-cudnn-cu13", "cudnnGetVersion", library="cudnn"
)
TENSORRT = Need(
    "TensorRT", ("libnvinfer.so.11", "libnvinfer.so.10"), "pip install tensorrt",
    "getInferLibVersion", library="nvinfer", package="tensorrt_libs",
)  # fmt: skip


@functools.cache
def driver_reason() -> str:
    """Return why there is no usable GPU (no driver, or a driver without a device), "" with one."""
    try:
        open_driver()
    except BackendError as error:
        return str(error)
    return ""


@functools.cache
def open_library(need: Need) -> Opened:
    """Open the library: the plug-in's file, else a wheel's, else the loader's."""
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
    details = f" ({failures[0]})" if failures else ""
    return Opened("", "", f"no {need.name}: {names} cannot be opened{details}: {need.advice}")


def cuda_availability(needs: Sequence[Need], parts: Sequence[Availability] = ()) -> Availability:
    """Return the availability of a toolchain: GPU, libraries, and `parts` (a compiler, a plug-in)."""
    opened = {need.name: open_library(need) for need in needs}
    missing = (driver_reason(), *(library.reason for library in opened.values()))
    reasons = list(filter(None, (*missing, *(part.reason for part in parts))))
    if reasons:
        return Availability("; ".join(reasons))
    versions = {need.sonames[0].partition(".")[0]: opened[need.name].version for need in needs}
    for part in parts:
        versions |= part.libraries
    return Availability("", {"driver": driver_version(open_driver()), **versions})


def wheel_folders(package: str) -> Iterator[Path]:
    """Yield the library folders of a package without importing it."""
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
