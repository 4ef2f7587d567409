"""The open folder of a bundle: the verified files are the loaded files.

A path can lead to another folder a moment later (`collage fetch` exchanges folders), and a name in it to
another file. So the folder is opened once, and each file once relative to it. Content is read, hashed and
loaded through these descriptors, without another look-up of names. Only regular files are accepted, no
links, and no names with a folder.

An open file can also be changed in place. This user and root could change this process as well; against
accidents the file's time and size are compared before and after. For a file writable by other users, a
sealed private copy in memory is hashed and loaded instead. It costs the file's size in memory, so a bundle
should belong to its user or root and not be writable for others.
"""

import contextlib
import errno
import fcntl
import hashlib
import itertools
import os
import shutil
import stat
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from collage.errors import BundleError

MANIFEST = "manifest.json"
MAX_READ_BYTES = 8 << 20
"""Size limit of a file read before verification."""
_CHUNK = 1 << 20
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
_paths = itertools.count()


class BundleFolder:
    """An open folder; its files stay accessible after it is renamed or removed."""

    def __init__(self, path: Path) -> None:
        """Open the folder. Raises BundleError when there is none."""
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            raise BundleError(f"{path} holds no bundle: {MANIFEST} is missing") from None
        except (OSError, ValueError) as error:
            raise BundleError(f"{path} cannot be read: {_reason(error)}") from error
        weakref.finalize(self, os.close, self._descriptor)

    def names(self) -> list[str]:
        """Return the sorted names of the folder's entries."""
        try:
            return sorted(os.listdir(self._descriptor))
        except OSError as error:
            raise BundleError(f"{self.path} cannot be read: {_reason(error)}") from error

    def read(self, name: str, limit_bytes: int = MAX_READ_BYTES) -> bytes:
        """Return the content of a file of at most `limit_bytes`.

        Raises:
            FileNotFoundError: there is no such file.
            OSError: the file cannot be read, is no regular file, or is too large.
        """
        with self._open(name) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            data = file.read() if size_bytes <= limit_bytes else b""
        if max(size_bytes, len(data)) > limit_bytes:
            raise OSError(errno.EFBIG, f"it has more than {limit_bytes} bytes", name)
        return data

    def open_verified(self, name: str, digest: str) -> "VerifiedFile":
        """Open a file and verify its SHA-256.

        Raises:
            BundleError: the file cannot be read, or has another digest.
        """
        try:
            with self._open(name) as file:
                return VerifiedFile(self.path / name, file, digest)
        except OSError as error:
            raise BundleError(
                f"{self.path / name} of the bundle cannot be read: {_reason(error)}"
            ) from error

    def _open(self, name: str) -> BinaryIO:
        if not name or name in (".", "..") or "/" in name or "\0" in name:
            raise OSError(errno.EINVAL, "no name of a file without a folder", name)
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe would wait
        try:
            descriptor = os.open(name, flags, dir_fd=self._descriptor)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise OSError(errno.ELOOP, "it is a link, not a file", name) from None
            raise
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "it is no regular file", name)
        return open(descriptor, "rb", buffering=0)


class VerifiedFile:
    """An open file with verified content."""

    def __init__(self, path: Path, file: BinaryIO, digest: str) -> None:
        """Hash an open file, or a private copy of it, and keep it open. Raises BundleError."""
        self.path, self.digest = path, digest
        shared = _others_may_write(os.fstat(file.fileno()))
        self._descriptor = _private_copy(path.name, file) if shared else os.dup(file.fileno())
        weakref.finalize(self, os.close, self._descriptor)
        self._before = self._state()
        self._check_digest()
        self.check_unchanged()

    def check_unchanged(self) -> None:
        """Raise BundleError when the file was changed in place since it was hashed."""
        if self._state() != self._before:
            raise BundleError(
                f"{self.path} was changed while it was read. Fetch the bundle into another folder, or "
                "move it there whole"
            )

    @contextlib.contextmanager
    def content(self) -> Iterator[BinaryIO]:
        """Open the content from its beginning; it is valid only if the context ends without an error."""
        with open(f"/proc/self/fd/{self._descriptor}", "rb") as file:  # at an offset of its own
            yield file
        self.check_unchanged()

    def is_same(self, status: os.stat_result) -> bool:
        """Tell whether `status` is that of the verified file itself; a private copy in memory is another."""
        return os.path.samestat(os.fstat(self._descriptor), status)

    def library_path(self) -> str:
        """Return a path of the open file for the dynamic loader, a new one in every call.

        The loader identifies libraries by path, and descriptors are reused. So redundant slashes and dots
        make each path unique.
        """
        number = f"{next(_paths):b}".replace("0", "//").replace("1", "/.")
        return f"/proc/self/fd{number}/{self._descriptor}"

    def _check_digest(self) -> None:
        with open(f"/proc/self/fd/{self._descriptor}", "rb", buffering=0) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != self.digest:
            raise BundleError(
                f"{self.path} was changed after the bundle was made (sha256 {digest[:12]}, expected "
                f"{self.digest[:12]}). Fetch or publish the bundle again."
            )

    def _state(self) -> tuple[int, ...]:
        status = os.fstat(self._descriptor)
        return status.st_size, status.st_mtime_ns  # not ctime, which a lost name changes too


def _others_may_write(status: os.stat_result) -> bool:
    """Tell whether a user other than this one and root may write to the file."""
    foreign = status.st_uid not in (0, os.geteuid())
    return foreign or bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def _private_copy(name: str, file: BinaryIO) -> int:
    """Return the descriptor of a sealed copy in memory."""
    descriptor = os.memfd_create(name[:200], os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with open(descriptor, "wb", closefd=False) as copy:
            shutil.copyfileobj(file, copy, _CHUNK)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
