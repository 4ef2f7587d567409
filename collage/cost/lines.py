"""Lines that are only ever appended to a file: each is there whole or counts as absent.

What a line tells took seconds of a machine, so it is on disk before the next begins, and nothing that
happens to one line may reach another: every line carries its own CRC-32, is written by one append
under an exclusive lock, and a line that does not check (a killed writer, a bad disk, another
version) is no more than a miss. Reading takes a shared lock, so a partial last line is really a
truncated one.

    <crc32 of the rest, 8 hex digits> {"key": ..., "seconds": ..., "samples": [...], ...}
"""

import fcntl
import json
import os
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from collage.errors import StoreError
from collage.store.atomic_folder import flush_folder, make_folders
from collage.store.records import parse_object

DAY = "day"
DAY_S = 24 * 3600.0


def encode_entry(entry: Mapping[str, Any]) -> bytes:
    """Return the line of one entry, with its check and its end."""
    text = json.dumps(entry, sort_keys=True, allow_nan=False).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def dated(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry with the day, counted from 1970, by which it is forgotten one day (`compact`)."""
    return {**entry, DAY: int(time.time() // DAY_S)}


def day_of(line: bytes) -> int | None:
    """Return the day of a line, None where it has none or does not check."""
    entry = _decode(line.rstrip(b"\n"))
    day = entry.get(DAY) if entry else None
    return day if isinstance(day, int) else None


def decode_entries(data: bytes) -> Iterator[dict[str, Any] | None]:
    """Iterate over the entries in whole lines; None stands for a line that does not check."""
    for line in data.splitlines():
        if line and not line.isspace():
            yield _decode(line)


def _decode(line: bytes) -> dict[str, Any] | None:
    try:
        crc, text = line[:8], line[9:]
        if line[8:9] != b" " or int(crc, 16) != zlib.crc32(text):
            return None
        return parse_object(text)
    except ValueError:
        return None


class LineFile:
    """One such file; several processes may use it at once."""

    def __init__(self, path: Path, what: str) -> None:
        """Name the file; nothing is created before the first line.

        Args:
            path: of the file; its folder is made.
            what: the lines hold, for messages: "costs".
        """
        self.path = path
        self._what = what
        self._read = 0

    def append(self, line: bytes, head: bytes = b"") -> None:
        """Append one line; it is on disk when this returns. `head` goes before the first of a file.

        Raises:
            StoreError: the disk is full or not writable. The file is as it was before.
        """
        try:
            with self._locked(os.O_RDWR | os.O_CREAT | os.O_APPEND, fcntl.LOCK_EX) as file:
                is_new = os.fstat(file).st_size == 0
                _append(file, line, head)
                if is_new:
                    flush_folder(self.path.parent)
        except OSError as error:
            what = self._what
            raise StoreError(
                f"the {what} {self.path} cannot be written: {error.strerror}; free space there or "
                f"choose another folder with --cache-dir. {what.capitalize()} kept so far stay"
            ) from error

    def read_new(self) -> bytes:
        """Return what was appended since the last call.

        Raises:
            StoreError: the file is there and cannot be read.
        """
        try:
            with self._locked(os.O_RDONLY, fcntl.LOCK_SH) as file:
                size = os.fstat(file).st_size
                if size < self._read:
                    self._read = 0
                data = _read_range(file, self._read, size)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise StoreError(
                f"the {self._what} {self.path} cannot be read: {error.strerror}; give read "
                "permission, or choose another folder with --cache-dir"
            ) from error
        self._read += len(data)
        return data

    @contextmanager
    def _locked(self, flags: int, lock: int) -> Iterator[int]:
        if flags & os.O_CREAT:
            make_folders(self.path.parent)
        file = os.open(self.path, flags, 0o666)
        try:
            fcntl.flock(file, lock)
            yield file
        finally:
            os.close(file)


def _append(file: int, line: bytes, head: bytes) -> None:
    size = os.fstat(file).st_size
    if size == 0:
        line = head + line
    elif os.pread(file, 1, size - 1) != b"\n":
        line = b"\n" + line
    try:
        written = os.write(file, line)
        if written < len(line):
            raise OSError(28, "No space left on device")
        os.fdatasync(file)
    except OSError:
        os.ftruncate(file, size)
        raise


def _read_range(file: int, start: int, end: int) -> bytes:
    parts = []
    while start < end:
        part = os.pread(file, end - start, start)
        if not part:
            break
        parts.append(part)
        start += len(part)
    return b"".join(parts)
