"""Memory and temporary files of a process, read from `/proc`.

Resident memory alone misses shared memory, a file to the kernel. Mapped segments count as RssShmem; open
segments without a mapping (a written memfd) are found among the descriptors. The larger of both figures
counts. Scanning descriptors and folders takes longer than reading a number, so it is done a few times a
second only.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path

SAMPLE_EVERY_S = 0.25
MAX_FILES = 10_000
"""Largest number of temporary files; more count as too large."""
_IN_MEMORY = ("/memfd:", "/dev/shm/", "/dev/zero", "/SYSV")


class Usage:
    """Usage of one process with temporary files in `folder`."""

    def __init__(self, pid: int, folder: Path) -> None:
        self._pid, self._folder = pid, folder
        self._looked = -1.0
        self._open_bytes = self._file_bytes = 0

    def memory_bytes(self) -> int:
        """Private and shared memory without mapped files; 0 after the process's end."""
        private, shared = self._resident()
        self._look()
        return private + max(shared, self._open_bytes)

    def file_bytes(self) -> int:
        """Bytes in the folder, at most `SAMPLE_EVERY_S` old."""
        self._look()
        return self._file_bytes

    def _resident(self) -> tuple[int, int]:
        """Private and shared resident bytes."""
        try:
            text = Path(f"/proc/{self._pid}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return 0, 0
        sizes = {"RssAnon:": 0, "RssShmem:": 0}
        for line in text.splitlines():
            name, _, size = line.partition("\t")
            if name in sizes:
                sizes[name] = int(size.split()[0]) * 1024
        return sizes["RssAnon:"], sizes["RssShmem:"]

    def _look(self) -> None:
        current_s = time.monotonic()
        if current_s - self._looked < SAMPLE_EVERY_S:
            return
        self._looked = current_s
        self._open_bytes = sum(self._open_segments().values())
        self._file_bytes = 0
        for number, size_bytes in enumerate(_sizes(str(self._folder))):
            self._file_bytes += size_bytes if number < MAX_FILES else 1 << 60

    def _open_segments(self) -> dict[tuple[int, int], int]:
        """Return the bytes of every open in-memory file, by device and inode."""
        folder, sizes = f"/proc/{self._pid}/fd", {}
        try:
            names = os.listdir(folder)
        except OSError:  # the process has ended
            return {}
        for name in names:
            try:
                if os.readlink(f"{folder}/{name}").startswith(_IN_MEMORY):
                    facts = os.stat(f"{folder}/{name}")
                    sizes[facts.st_dev, facts.st_ino] = facts.st_blocks * 512
            except OSError:
                continue  # closed meanwhile
        return sizes


def _sizes(folder: str) -> Iterator[int]:
    """Yield the bytes on disk of every file below a folder, links not followed."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    yield from _sizes(entry.path)
                else:
                    yield entry.stat(follow_symlinks=False).st_blocks * 512
    except OSError:
        return  # removed meanwhile
