"""The store of an address: a path, `file:` address, or `s3://bucket/prefix?setting=value&...`."""

from pathlib import Path
from urllib.parse import unquote

from collage.errors import OptionError
from collage.store.base import Store
from collage.store.directory import DirectoryStore
from collage.store.s3_settings import parse_s3


def open_store(address: str | Path, *, writes: bool = True, must_exist: bool = False) -> Store:
    """Open the store at `address`.

    >>> open_store("s3://models/collage?endpoint=http://minio:9000&addressing=path")  # doctest: +SKIP

    Args:
        address: a folder, or `s3://bucket/prefix?...` with the settings of `S3Settings`.
        writes: True for a caller that moves pointers; S3 is probed for conditional writes at once.
        must_exist: True makes an absent folder an error; False makes it an empty store.

    Raises:
        OptionError: the address is invalid, the folder is absent, or boto3 is not installed.
        StoreError: the store does not answer, or has no reliable conditional writes.
    """
    text = str(address)
    scheme, separator, path = text.partition("://")
    if isinstance(address, Path) or not separator:
        return _open_folder(Path(address).expanduser(), must_exist)
    if scheme == "file":
        return _open_folder(Path(unquote(path)), must_exist)
    if scheme != "s3":
        raise OptionError(f"a store is a folder or s3://bucket/prefix, not {scheme}://...")
    settings = parse_s3(text)
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


def _open_folder(root: Path, must_exist: bool) -> DirectoryStore:
    if root.is_file():
        raise OptionError(f"{root} is a file; a store is a folder or s3://bucket/prefix")
    if must_exist and not root.is_dir():
        raise OptionError(f"there is no folder {root}: is this the store's address?")
    return DirectoryStore(root)
