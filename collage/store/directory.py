"""The store in a local folder: a key is a path.

Every file is written beside its place, flushed to disk, and renamed: a killed process or a full disk
leaves at most a file under `tmp/`, which the next store that opens the folder deletes after a day. New
folders are flushed too: a name in a folder that is not on disk is not either.

Several users may share a store: what is made in it has the mode of its root (files without the right to
execute), and its group where the root is setgid: `chmod 2770` and `chgrp` of the root, once, are enough
whatever the users' umask.

Swaps exclude each other by a lock on the file `lock` (the kernel drops it when its holder dies); the
version of a pointer is the digest of its content.
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
from collage.store.base import Entry, Found, Source, Version, check_key

_STALE_S = 24 * 3600.0
_PARTIAL = "object-"
_NOT_EXECUTABLE = 0o666


class DirectoryStore:
    """Implements `Store` in the folder `root`, which processes may share.

    >>> store = DirectoryStore(Path(tempfile.mkdtemp()))
    >>> store.create("probe/a", b"kernel")
    >>> store.read("probe/a").data
    b'kernel'
    """

    def __init__(self, root: Path) -> None:
        """Open the store; nothing is created before the first write."""
        self.root = root
        self._flushed: set[Path] = set()
        self.remove_partial(_STALE_S, dry_run=False)

    @property
    def url(self) -> str:
        return str(self.root)

    def read(self, key: str) -> Found | None:
        path = self._path(key)
        with self._explained("read", path):
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                return None
        return Found(data, _version(data))

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
                # also where it is damaged: whoever holds the right content repairs the store
                self._write(path, source)
            else:
                self._flush(path.parent)  # whoever wrote it may not have come to that yet

    def swap(self, key: str, data: bytes, version: Version | None) -> bool:
        path = self._path(key)
        with self._explained("write", path), self._locked():
            try:
                found = _version(path.read_bytes())
            except FileNotFoundError:
                found = None
            if found != version:
                return False
            self._write(path, data)
            return True

    def copy(self, key: str, other: str) -> bool:
        path, target = self._path(key), self._path(other)
        with self._explained("write", target):
            try:
                stream = path.open("rb")
            except FileNotFoundError:
                return False
            with stream:
                self._write(target, stream)
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
                continue  # another process was faster, or it is not ours to delete
        return removed

    def _path(self, key: str) -> Path:
        return self.root / check_key(key)

    def _entry(self, path: Path) -> Entry | None:
        try:
            found = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not path.is_file():
            return None
        age_s = max(0.0, time.time() - found.st_mtime)
        return Entry(path.relative_to(self.root).as_posix(), found.st_size, age_s)

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
        """Let the names in a folder be on disk, and once a process those of the folders above."""
        flush_folder(folder)
        while folder not in self._flushed and folder != self.root:
            self._flushed.add(folder)
            folder = folder.parent
            flush_folder(folder)

    def _mode(self) -> int:
        """Return the mode of folders in the store: the root's, which is made where it is missing."""
        make_folders(self.root)
        return stat.S_IMODE(self.root.stat().st_mode)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        mode = self._mode() & _NOT_EXECUTABLE
        file = os.open(self.root / "lock", os.O_RDONLY | os.O_CREAT, mode)  # others' needs no more
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
            what = f"the store {self.root} cannot {action} {path.relative_to(self.root)}"
            raise StoreError(f"{what}: {error.strerror or error}; {advice}") from error


def _version(data: bytes) -> Version:
    return Version(hashlib.sha256(data).hexdigest())


def _touch(path: Path) -> bool:
    """Make a file young; return False where that is for its owner alone."""
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
        with path.open("rb") as one, source.open("rb") as other:
            digests = [hashlib.file_digest(stream, "sha256").digest() for stream in (one, other)]
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
