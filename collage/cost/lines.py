"""Append-only files of lines: each line is intact or counts as absent.

The content of a line took seconds of machine time, so it is on disk before the next measurement begins, and
damage of one line never affects another: every line has its own CRC-32 and is written by one append under an
exclusive lock. A line with a wrong checksum (a killed writer, a bad disk, another version) is only a miss.
Readers take a shared lock, so a partial last line is really a truncated one.

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
    """Return the line of one entry, with checksum and line end."""
    text = json.dumps(entry, sort_keys=True, allow_nan=False).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def dated(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry with its day, counted from 1970; `compact` drops entries by age."""
    return {**entry, DAY: int(time.time() // DAY_S)}


def day_of(line: bytes) -> int | None:
    """Return the day of a line; None for a damaged line or one without a day."""
    entry = _decode(line.rstrip(b"\n"))
    day = entry.get(DAY) if entry else None
    return day if isinstance(day, int) else None


def decode_entries(data: bytes) -> Iterator[dict[str, Any] | None]:
    """Yield the entry of each line; None for a damaged line."""
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
    """One append-only file of lines; several processes may use it at once."""

    def __init__(self, path: Path, content: str) -> None:
        """Name the file; nothing is created before the first line.

        Args:
            path: the file; its folder is created with the first line.
            content: content of the lines for messages, such as "costs".
        """
        self.path = path
        self._content = content
        self._read = 0

    def append(self, line: bytes, head: bytes = b"") -> None:
        """Append one line; it is on disk on return.

        Args:
            line: the line with its line end.
            head: line before the first line of a new file; default b"", none.

        Raises:
            StoreError: the disk is full or not writable. The file is unchanged.
        """
        try:
            with self._locked(os.O_RDWR | os.O_CREAT | os.O_APPEND, fcntl.LOCK_EX) as file:
                is_new = os.fstat(file).st_size == 0
                _append(file, line, head)
                if is_new:
                    flush_folder(self.path.parent)
        except OSError as error:
            content = self._content
            raise StoreError(
                f"the {content} {self.path} cannot be written: {error.strerror}; free space there or "
                f"choose another folder with --cache-dir. {content.capitalize()} kept so far stay"
            ) from error

    def read_new(self) -> bytes:
        """Return the bytes appended since the last call.

        Raises:
            StoreError: the file exists and cannot be read.
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
                f"the {self._content} {self.path} cannot be read: {error.strerror}; give read "
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
