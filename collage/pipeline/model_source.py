"""Models by address: an ONNX file of this machine or in S3 with its external data, or a folder of them."""

from pathlib import Path
from urllib.parse import unquote

from collage.errors import ModelError, OptionError
from collage.frontend.model_files import external_names
from collage.store import Store, open_store


def is_address(text: str) -> bool:
    """Tell the address of an ONNX file, or of a folder of them, from the name of a registered model.

    An address has a scheme, or is a path with a folder in it; that of a folder ends with "/". A name alone is
    that of a registered model, also one that ends as a file's does; the file of that name in the current
    folder is `./NAME`.

    >>> is_address("s3://models/ocr/rec.onnx?region=eu-west-1"), is_address("/models/speech/")
    (True, True)
    >>> is_address("ocr/rec"), is_address("rec.onnx"), is_address("./rec.onnx")
    (False, False, True)
    """
    return "://" in text or ("/" in text and text.endswith((".onnx", "/")))


def fetch_source(address: str, folder: Path) -> Path:
    """Return the ONNX file at `address`, or the folder of files; from S3 it is brought into `folder`.

    The address of a folder ends with "/": its files `*.onnx` are the entries of one bundle.

    Raises:
        ModelError: there is no such file or folder, or external data is missing or lies elsewhere.
        OptionError: the address makes no sense.
        StoreError: S3 does not answer.
    """
    if address.startswith("file://"):
        address = unquote(address.removeprefix("file://"))
    if "://" not in address:
        path, is_folder = Path(address).expanduser(), address.endswith("/")
        if not (path.is_dir() if is_folder else path.is_file()):
            kind = "folder" if is_folder else "file"
            raise ModelError(f"{path}: no such {kind} on the machine that runs the flow")
        return path
    location, _, settings = address.partition("?")
    parent, _, name = location.rpartition("/")
    store = open_store(f"{parent}?{settings}" if settings else parent, writes=False)
    if name:
        return _download(store, name, folder)
    return _download_folder(store, folder / parent.rpartition("/")[2])


def fetch_samples_source(address: str, folder: Path) -> Path:
    """Return the samples at `address`; an .npz file in S3 is brought into `folder`.

    Raises:
        OptionError: there are no samples, or the address makes no sense.
        StoreError: S3 does not answer.
    """
    if "://" not in address:
        path = Path(address).expanduser()
        if not path.exists():
            raise OptionError(f"{path}: no such samples on the machine that runs the flow")
        return path
    location, _, settings = address.partition("?")
    parent, _, name = location.rpartition("/")
    store = open_store(f"{parent}?{settings}" if settings else parent, writes=False)
    file = folder / name
    if not store.download(name, file):
        raise OptionError(f"{store.url}/{name}: no such samples; name one .npz file")
    return file


def _download_folder(store: Store, folder: Path) -> Path:
    """Bring the ONNX files at the top of the store, with their external data, into `folder`."""
    names = [entry.key for entry in store.entries("")]
    models = sorted(name for name in names if name.endswith(".onnx") and "/" not in name)
    if not models:
        raise ModelError(f"{store.url} has no file *.onnx; give ONNX files, or a folder of them")
    folder.mkdir(parents=True, exist_ok=True)
    for name in models:
        _download(store, name, folder)
    return folder


def _download(store: Store, name: str, folder: Path) -> Path:
    path = folder / name
    if not store.download(name, path):
        raise ModelError(f"{store.url}/{name}: no such object")
    for external in external_names(path):
        file = folder / external
        if file == path:
            raise ModelError(f"{name} names itself as its external data")
        file.parent.mkdir(parents=True, exist_ok=True)
        if not store.download(external, file):
            raise ModelError(
                f"{store.url}/{name} needs its external data {external}: no such object"
            )
    return path
