"""`collage doctor`: is everything here that a compile needs?"""

import shutil
from dataclasses import dataclass
from uuid import uuid4

from collage.backends.registry import known_backends
from collage.errors import BackendError, CollageError, StoreError
from collage.options import Options
from collage.pipeline.compile_context import work_folder
from collage.runtime.plugin import load_plugin
from collage.store import open_store


@dataclass(frozen=True)
class Check:
    """One line of `collage doctor`."""

    name: str
    passed: bool
    detail: str


def doctor(options: Options) -> list[Check]:
    """Check what a compile needs: backends, the plug-in, a linker, the store, memory."""
    checks = []
    for backend in known_backends(None, options.device):
        availability = backend.availability()
        versions = ", ".join(
            f"{name} {version}" for name, version in availability.libraries.items()
        )
        checks.append(
            Check(
                f"backend {backend.name}", availability.available, availability.reason or versions
            )
        )
    try:
        load_plugin()
        checks.append(Check("runtime plug-in", True, "loads"))
    except BackendError as error:
        checks.append(Check("runtime plug-in", False, str(error)))
    linker = shutil.which("g++") or shutil.which("c++") or shutil.which("clang++")
    checks.append(Check("linker", linker is not None, linker or "install g++ or clang"))
    try:
        with work_folder(options.store_dir):
            pass
        free = shutil.disk_usage(options.store_dir).free
        checks.append(Check("store", free > 1 << 30, f"{options.store_dir}, {free >> 30} GiB free"))
    except StoreError as error:
        checks.append(Check("store", False, str(error)))
    if options.store is not None:
        checks.append(_check_shared(options.store))
    return checks


def _check_shared(address: str) -> Check:
    try:
        store = open_store(address)
        if "probe=off" not in address:
            return Check("shared store", True, f"{store.url} keeps writers apart")
        store.create(f"answers/{uuid4().hex}.json", b"{}")  # gc takes it
        return Check("shared store", True, f"{store.url} takes answers of pods")
    except CollageError as error:
        return Check("shared store", False, str(error))
