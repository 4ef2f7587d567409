"""The store in a local folder: `blobs/ab/<digest>` and `names/<name>`.

Every file is written beside its place, flushed to disk, and renamed: a killed process or a full disk
leaves at most a file under `tmp/`, which the next store that opens the folder may delete after a day.
"""

import hashlib
import os
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from collage.errors import StoreError
from collage.store.base import BlobDigest

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_STALE_S = 24 * 3600.0


class DirectoryStore:
    """Implements `Store` in the folder `root`, which may be shared by processes.

    >>> store = DirectoryStore(Path(tempfile.mkdtemp()))
    >>> store.get(store.put(b"kernel"))
    b'kernel'
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._remove_stale()

    def put(self, data: bytes) -> BlobDigest:
        digest = BlobDigest(hashlib.sha256(data).hexdigest())
        path = self._blob(digest)
        if not self._is_whole(path, data):
            self._write(path, data)
        return digest

    def get(self, digest: BlobDigest) -> bytes:
        path = self._blob(digest)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise StoreError(
                f"the store {self.root} has no blob {digest}; run the stage that makes it again"
            ) from None
        except OSError as error:
            raise StoreError(f"{path} cannot be read: {error.strerror}") from error
        if hashlib.sha256(data).hexdigest() != digest:
            raise StoreError(
                f"{path} was changed or damaged: its content has another digest; delete it and "
                "run the stage that makes it again"
            )
        return data

    def has(self, digest: BlobDigest) -> bool:
        return self._blob(digest).is_file()

    def bind(self, name: str, digest: BlobDigest) -> None:
        self._blob(digest)
        self._write(self._named(name), digest.encode())

    def resolve(self, name: str) -> BlobDigest | None:
        path = self._named(name)
        try:
            text = path.read_text()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"{path} cannot be read: {error.strerror}") from error
        if not _DIGEST.fullmatch(text):
            raise StoreError(f"{path} was damaged: it holds no digest; delete it")
        return BlobDigest(text)

    def _blob(self, digest: BlobDigest) -> Path:
        if not _DIGEST.fullmatch(digest):
            raise StoreError(f"{digest!r} is no blob's digest")
        return self.root / "blobs" / digest[:2] / digest

    def _named(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise StoreError(f"{name!r} cannot be a name: use words, digits, '-', '_', '.' and '/'")
        return self.root / "names" / f"{name}.name"

    def _is_whole(self, path: Path, data: bytes) -> bool:
        """A damaged blob is written anew: whoever holds the right content repairs the store."""
        try:
            return path.stat().st_size == len(data) and path.read_bytes() == data
        except OSError:
            return False

    def _write(self, path: Path, data: bytes) -> None:
        with self._explained():
            path.parent.mkdir(parents=True, exist_ok=True)
            (self.root / "tmp").mkdir(exist_ok=True)
            handle, name = tempfile.mkstemp(prefix="blob-", dir=self.root / "tmp")
            temporary = Path(name)
            try:
                with os.fdopen(handle, "wb") as stream:
                    stream.write(data)
                    stream.flush()
                    os.fsync(stream.fileno())
                temporary.replace(path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
            _flush_folder(path.parent)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreError(
                f"the store {self.root} cannot be written: {error.strerror}; free space there or "
                "choose another folder with --cache-dir. What it held before is unchanged"
            ) from error

    def _remove_stale(self) -> None:
        limit = time.time() - _STALE_S
        for file in (self.root / "tmp").glob("blob-*"):
            try:
                if file.stat().st_mtime < limit:
                    file.unlink()
            except OSError:
                continue  # another process was faster, or it is not ours to delete


def _flush_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
