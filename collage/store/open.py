"""The store of an address: a path, `file://`, or a bucket (`s3://`, `gs://`, `az://`) with its settings."""

from pathlib import Path
from urllib.parse import unquote

from collage.errors import OptionError
from collage.store.base import Store
from collage.store.cloud_settings import SCHEMES, parse_cloud
from collage.store.directory import DirectoryStore
from collage.store.s3_settings import parse_s3


def open_store(address: str | Path, *, writes: bool = True, must_exist: bool = False) -> Store:
    """Open the store at `address`.

    >>> open_store("s3://models/collage?endpoint=http://minio:9000&addressing=path")  # doctest: +SKIP

    Args:
        address: a folder, `s3://bucket/prefix?...` with the settings of `S3Settings`, or `gs://...` or
            `az://...` with those of `CloudSettings`.
        writes: True for a caller that moves pointers; a bucket is probed for conditional writes at once.
        must_exist: True makes an absent folder an error; False makes it an empty store.

    Raises:
        OptionError: the address is invalid, the folder is absent, or a package is missing.
        StoreError: the store does not answer, or has no reliable conditional writes.
    """
    text = str(address)
    scheme, separator, path = text.partition("://")
    if isinstance(address, Path) or not separator:
        return _open_folder(Path(address).expanduser(), must_exist)
    if scheme == "file":
        return _open_folder(Path(unquote(path)), must_exist)
    if scheme == "s3":
        return _open_s3(text, writes)
    if scheme in SCHEMES:
        return _open_cloud(text, writes)
    raise OptionError(
        "a store is a folder, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix, not "
        f"{scheme}://..."
    )


def _open_s3(address: str, writes: bool) -> Store:
    settings = parse_s3(address)
    try:
        from collage.store.s3 import S3Store
        from collage.store.s3_probe import probe_conditional_writes
    except ImportError as error:
        raise OptionError(
            f"a store in S3 needs boto3 ({error}): pip install 'collage[s3]'"
        ) from error
    store = S3Store(settings)
    if writes and settings.probe == "on":
        probe_conditional_writes(store)
    return store


def _open_cloud(address: str, writes: bool) -> Store:
    settings = parse_cloud(address)
    try:
        from collage.store.cloud_store import CloudStore, probe_cloud
    except ImportError as error:
        raise OptionError(
            f"a store in {settings.scheme}:// needs obstore ({error}): pip install 'collage[obstore]'"
        ) from error
    store = CloudStore(settings)
    if writes and settings.probe == "on":
        probe_cloud(store)
    return store


def _open_folder(root: Path, must_exist: bool) -> DirectoryStore:
    if root.is_file():
        raise OptionError(
            f"{root} is a file; a store is a folder, or a bucket (s3://, gs://, az://)"
        )
    if must_exist and not root.is_dir():
        raise OptionError(f"there is no folder {root}: is this the store's address?")
    return DirectoryStore(root)
