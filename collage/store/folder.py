"""Local folders that are written whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from collage.errors import BundleError, StoreError


def check_output(output: Path) -> None:
    """Raise BundleError unless `output` is free, empty or an older bundle."""
    if not output.exists():
        return
    if not output.is_dir():
        raise BundleError(f"{output} is a file; name a folder for the bundle with --output")
    names = {entry.name for entry in output.iterdir()}
    if names and "manifest.json" not in names:
        raise BundleError(
            f"{output} holds files but no bundle; it is not overwritten. Name another folder."
        )


def replace_folder(partial: Path, output: Path, scratch: Path) -> None:
    """Let `partial` take the place of `output`; what is there goes into the folder `scratch`."""
    if output.exists():
        output.rename(scratch / "old")
    partial.rename(output)


def write_durably(file: Path, data: bytes) -> None:
    """Write a file that is on disk when this returns."""
    with file.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def flush_folder(folder: Path) -> None:
    """Let the names in `folder` be on disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def file_explained(file: Path) -> Iterator[None]:
    """Turn an OSError of writing the local `file` into a StoreError."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"{file} cannot be written: {error.strerror or error}; free space or choose another folder"
        ) from error
