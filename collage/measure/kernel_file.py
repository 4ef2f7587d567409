"""A built kernel as one file, for processes and machines without compilers.

    {"form": "plugin", "kind": ..., "allocates": ..., "build_s": ...}\\n    then the plug-in's blob
    {"form": "library", "symbol": ..., "constants": [[dtype, shape], ...], "scratch": bytes,
     "code": [[digest, size], ...], "build_s": ...}\\n    then the constants' bytes in order, machine code
     for a GPU, and a shared library

Native and CUDA code is linked by the compiler driver of this machine, for its processor. The loading
machine needs the same instruction sets and library versions; the environment of the kernel's cost holds
them. A library's preparation of its blob is part of loading.

A file is for a measurement and has only what a call needs: `load_kernel` returns types that no plan takes.
A bundle's kernels come from their backends, with the names of their libraries.
"""

import json
import tempfile
from collections.abc import Mapping
from dataclasses import astuple
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from collage.backends.base import CudaKernel, Kernel, PluginKernel, TirKernel
from collage.errors import BackendError
from collage.measure.callable_kernel import BlobKernel, LibraryKernel, compiled_module
from collage.measure.measurement_request import MeasurementRequest
from collage.runtime.target import Target


def kernel_name(work: MeasurementRequest) -> str:
    """Return the file name of the request's kernel."""
    return sha256(repr(astuple(work)).encode()).hexdigest()


def save_kernel(kernel: Kernel, threads: int, build_s: float, file: Path) -> None:
    """Write the kernel to `file`.

    Args:
        kernel: kernel of a backend; a TIR kernel is compiled and linked first.
        threads: number of threads of the kernel.
        build_s: build time in the backend, in seconds.

    Raises:
        BackendError: it cannot be linked.
        OSError: the disk is full.
    """
    match kernel:
        case PluginKernel(kind, blob, allocates):
            head = {"form": "plugin", "kind": kind, "allocates": allocates}
            _write(file, head | {"build_s": build_s}, [blob])
        case TirKernel(_, symbol, constants):
            with tempfile.TemporaryDirectory(dir=file.parent) as folder:
                linked = Path(folder) / "kernel.so"
                code = _link(kernel, threads, linked)
                _write_library(file, LibraryKernel(linked, symbol, constants), build_s, code)
        case CudaKernel(linked, symbol, constants, scratch):
            _write_library(file, LibraryKernel(linked, symbol, constants, scratch), build_s)


def load_kernel(file: Path) -> tuple[BlobKernel | LibraryKernel, float]:
    """Return the kernel of a file, and its build time in seconds.

    Raises:
        BackendError: the file was not written by `save_kernel`, or is damaged.
    """
    line, _, payload = file.read_bytes().partition(b"\n")
    try:
        head = json.loads(line)
        if head["form"] == "plugin":
            kernel = BlobKernel(head["kind"], payload, head["allocates"])
            return kernel, float(head["build_s"])
        constants = []
        for name, shape in head["constants"]:
            like = np.dtype(name)
            size = like.itemsize * int(np.prod(shape))
            constants.append(np.frombuffer(payload[:size], like).reshape(shape))
            payload = payload[size:]
        code = {}
        for digest, size in head["code"]:
            code[digest], payload = payload[:size], payload[size:]
        if code:
            from collage.backends.nvidia.tvm_cuda.schedule import use_device_code

            use_device_code(code)
        library = file.with_suffix(".so")
        library.write_bytes(payload)
        linked = LibraryKernel(library, head["symbol"], tuple(constants), head.get("scratch", 0))
        return linked, float(head["build_s"])
    except (ValueError, KeyError, TypeError) as error:
        raise BackendError(f"{file.name} holds no kernel: {error}") from error


def _link(kernel: Kernel, threads: int, file: Path) -> dict[str, bytes]:
    """Link the kernel, and return its machine code for a GPU; empty for a CPU."""
    assert isinstance(kernel, TirKernel)
    executable = compiled_module(kernel, threads)
    try:
        executable.export_library(str(file), workspace_dir=str(file.parent))
    except RuntimeError as error:
        last = str(error).strip().splitlines()[-1:]
        raise BackendError(f"the kernel cannot be linked: {' '.join(last)}") from error
    if not Target(kernel.device).is_gpu:
        return {}
    from collage.backends.nvidia.tvm_cuda.schedule import device_code

    return device_code(executable)


def _write_library(
    file: Path, kernel: LibraryKernel, build_s: float, code: Mapping[str, bytes] | None = None
) -> None:
    code = code or {}
    head = {
        "form": "library",
        "symbol": kernel.symbol,
        "constants": [[constant.dtype.name, list(constant.shape)] for constant in kernel.constants],
        "scratch": kernel.scratch,
        "code": [[digest, len(machine_code)] for digest, machine_code in code.items()],
        "build_s": build_s,
    }
    parts = [np.ascontiguousarray(constant).tobytes() for constant in kernel.constants]
    _write(file, head, [*parts, *code.values(), kernel.file.read_bytes()])


def _write(file: Path, head: dict[str, Any], parts: list[bytes]) -> None:
    with file.open("wb") as out:
        out.write(json.dumps(head).encode() + b"\n")
        out.writelines(parts)
