"""The store in a local folder: a key is a path.

Every file is written under `tmp/`, flushed to disk, and renamed: a killed process or a full disk leaves at
most a file there, and a later store of the folder deletes it after a day. New folders are flushed too: a
name is durable only if its folder is.

Several users may share a store: new files and folders have the mode of its root (files without the right to
execute), and its group if the root is setgid. `chmod 2770` and `chgrp` of the root, once, are enough for
any umask.

A lock on the file `lock` serialises swaps (the kernel drops it with its holder); the version of a pointer is
the digest of its content.
"""

import fcntl
import hashlib
import os
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from collage.errors import StoreError
from collage.store.atomic_folder import file_explained, flush_folder, make_folders
from collage.store.base import Entry, Source, StoredObject, Version, check_key

_STALE_S = 24 * 3600.0
_PARTIAL = "object-"
_NOT_EXECUTABLE = 0o666


class DirectoryStore:
    """Implements `Store` in the folder `root`; processes may share it.

    >>> store = DirectoryStore(Path(tempfile.mkdtemp()))
    >>> store.create("probe/a", b"kernel")
    >>> store.read("probe/a").data
    b'kernel'
    """

    def __init__(self, root: Path) -> None:
        """Open the store; the first write creates it."""
        self.root = root
        self._flushed: set[Path] = set()
        self.remove_partial(_STALE_S, dry_run=False)

    @property
    def url(self) -> str:
        return str(self.root)

    def read(self, key: str) -> StoredObject | None:
        path = self._path(key)
        with self._explained("read", path):
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                return None
        return StoredObject(data, _version(data))

    def download(self, key: str, file: Path) -> bool:
        path = self._path(key)
        with self._explained("read", path):
            try:
                stream = path.open("rb")
            except FileNotFoundError:
                return False
        with stream, file_explained(file), file.open("wb") as copy:
            shutil.copyfileobj(stream, copy, 1 << 20)
        return True

    def create(self, key: str, source: Source) -> None:
        path = self._path(key)
        with self._explained("write", path):
            if not (_is_same(path, source) and _touch(path)):
                # a damaged object too: a writer with the right content repairs the store
                self._write(path, source)
            else:
                self._flush(path.parent)  # its writer may not have flushed the folder yet

    def swap(self, key: str, data: bytes, version: Version | None) -> bool:
        path = self._path(key)
        with self._explained("write", path), self._locked():
            try:
                standing = _version(path.read_bytes())
            except FileNotFoundError:
                standing = None
            if standing != version:
                return False
            self._write(path, data)
            return True

    def copy(self, key: str, target: str) -> bool:
        path, target_path = self._path(key), self._path(target)
        with self._explained("write", target_path):
            try:
                stream = path.open("rb")
            except FileNotFoundError:
                return False
            with stream:
                self._write(target_path, stream)
        return True

    def stat(self, key: str) -> Entry | None:
        path = self._path(key)
        with self._explained("read", path):
            return self._entry(path)

    def entries(self, prefix: str) -> Iterator[Entry]:
        folder = self.root / prefix.rpartition("/")[0]
        for path in sorted(folder.rglob("*")):
            with self._explained("read", path):
                entry = self._entry(path)
            if entry and entry.key.startswith(prefix):
                yield entry

    def delete(self, key: str) -> None:
        path = self._path(key)
        with self._explained("delete", path):
            path.unlink(missing_ok=True)

    def link(self, key: str, expires_s: float, media_type: str) -> str:
        return self._path(key).absolute().as_uri()

    def remove_partial(self, older_s: float, dry_run: bool) -> list[str]:
        limit = time.time() - older_s
        removed = []
        for file in sorted((self.root / "tmp").glob(f"{_PARTIAL}*")):
            try:
                if file.stat().st_mtime <= limit:
                    if not dry_run:
                        file.unlink()
                    removed.append(f"unfinished file {file}")
            except OSError:
                continue  # another process was faster, or the file belongs to another user
        return removed

    def _path(self, key: str) -> Path:
        return self.root / check_key(key)

    def _entry(self, path: Path) -> Entry | None:
        try:
            status = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not path.is_file():
            return None
        age_s = max(0.0, time.time() - status.st_mtime)
        return Entry(path.relative_to(self.root).as_posix(), status.st_size, age_s)

    def _write(self, path: Path, source: Source | BinaryIO) -> None:
        mode = self._mode()
        make_folders(path.parent, mode)
        make_folders(self.root / "tmp", mode)
        temporary = self.root / "tmp" / f"{_PARTIAL}{uuid4().hex}"
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(handle, "wb") as stream:
                os.fchmod(handle, mode & _NOT_EXECUTABLE)
                _copy(source, stream)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        self._flush(path.parent)

    def _flush(self, folder: Path) -> None:
        """Flush the names in a folder to disk, and once for each process those of its parents."""
        flush_folder(folder)
        while folder not in self._flushed and folder != self.root:
            self._flushed.add(folder)
            folder = folder.parent
            flush_folder(folder)

    def _mode(self) -> int:
        """Return the mode of the store's folders: that of the root, created on demand."""
        make_folders(self.root)
        return stat.S_IMODE(self.root.stat().st_mode)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        mode = self._mode() & _NOT_EXECUTABLE
        file = os.open(
            self.root / "lock", os.O_RDONLY | os.O_CREAT, mode
        )  # a lock of another user's file needs no more
        try:
            if os.fstat(file).st_uid == os.geteuid():
                os.fchmod(file, mode)
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)

    @contextmanager
    def _explained(self, action: str, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            advice = "give permission, or repair the disk"
            if action == "write":
                advice = (
                    "free space there, give permission, or choose another folder. "
                    "What the store held before is unchanged"
                )
            failure = f"the store {self.root} cannot {action} {path.relative_to(self.root)}"
            raise StoreError(f"{failure}: {error.strerror or error}; {advice}") from error


def _version(data: bytes) -> Version:
    return Version(hashlib.sha256(data).hexdigest())


def _touch(path: Path) -> bool:
    """Make a file young; return False if only its owner may do so."""
    try:
        os.utime(path)
    except PermissionError:
        return False
    return True


def _is_same(path: Path, source: Source) -> bool:
    try:
        if isinstance(source, bytes):
            return path.stat().st_size == len(source) and path.read_bytes() == source
        if path.stat().st_size != source.stat().st_size:
            return False
        with path.open("rb") as stored, source.open("rb") as content:
            digests = [
                hashlib.file_digest(stream, "sha256").digest() for stream in (stored, content)
            ]
        return digests[0] == digests[1]
    except FileNotFoundError:
        return False


def _copy(source: Source | BinaryIO, stream: BinaryIO) -> None:
    if isinstance(source, bytes):
        stream.write(source)
    elif isinstance(source, Path):
        with source.open("rb") as content:
            shutil.copyfileobj(content, stream, 1 << 20)
    else:
        shutil.copyfileobj(source, stream, 1 << 20)
