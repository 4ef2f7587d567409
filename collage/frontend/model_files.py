"""The files of a model, held open, so that checks and reads see the same file.

A model names the files of its weights. In an untrusted model such a name may be `../../token`,
`/proc/self/environ`, a link out of the folder, a blocking pipe, or a file under replacement. So a name is
relative and has no `..`; its resolved path must lie below the model's folder; each step of the path is
opened without following links, and all reads use the open descriptor.

Links are followed only inside the model's own snapshot. In the cache of Hugging Face,

    models--org--name/snapshots/REVISION/onnx/model.onnx -> ../../../blobs/DIGEST

the snapshot is the folder of the revision and, beside `snapshots`, the folder `blobs`. Everywhere else it
is the folder of the model's file.
"""

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

import onnx

from collage.errors import ModelError
from collage.frontend.onnx_proto import all_tensors
from collage.frontend.survey import Survey, survey
from collage.frontend.tensor_fields import tensor_bytes
from collage.import_limits import import_limits

_MAX_PROTOBUF_BYTES = (1 << 31) - 1
"""Size limit of a protobuf message."""
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class HeldFile:
    """An open regular file."""

    descriptor: int
    size_bytes: int

    @property
    def path(self) -> Path:
        """Path of the open file for this process, independent of its name."""
        return Path(f"/proc/self/fd/{self.descriptor}")

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Return bytes from `offset` on; fewer at the end of the file."""
        parts, end = [], offset + size_bytes
        while offset < end and (
            part := os.pread(self.descriptor, min(end - offset, 1 << 30), offset)
        ):
            parts.append(part)
            offset += len(part)
        return b"".join(parts)


@dataclass(frozen=True)
class ModelFiles:
    """A model's own file, and the files of its external data by relative name."""

    path: Path
    own: HeldFile
    data: bytes
    survey: Survey
    external: Mapping[str, HeldFile]

    @property
    def size_bytes(self) -> int:
        return self.own.size_bytes + sum(file.size_bytes for file in self.external.values())

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all files in sequence."""
        digest = hashlib.sha256(self.data)
        for _, file in sorted(self.external.items()):
            offset = 0
            while block := file.read(offset, 1 << 20):
                digest.update(block)
                offset += len(block)
        return digest.hexdigest()

    def fill(self, model: onnx.ModelProto) -> None:
        """Copy the external data into the tensors of the parsed model. Raises ModelError."""
        for tensor in all_tensors(model):
            if tensor.data_location != onnx.TensorProto.EXTERNAL:
                continue
            entries = {entry.key: entry.value for entry in tensor.external_data}
            offset = int(entries.get("offset", "0"))
            size_bytes = tensor_bytes(tensor.dims, tensor.data_type)
            content = self.external[checked_name(entries["location"])].read(offset, size_bytes)
            if len(content) != size_bytes:
                raise _too_short(self.path, tensor.name, entries["location"])
            tensor.ClearField("data_location")
            del tensor.external_data[:]
            tensor.raw_data = content


@contextmanager
def open_model(path: Path) -> Iterator[ModelFiles]:
    """Open and check the files of the model at `path`.

    Raises:
        ModelError: no model, a model beyond the limits (`frontend.survey`), or external data that is
            missing, incomplete, no regular file, or outside of the model's folder.
    """
    with ExitStack() as stack:
        own = _open_own(path, stack)
        data = own.read(0, own.size_bytes)
        try:
            surveyed = survey(data, import_limits())
            names = sorted({checked_name(tensor.location) for tensor in surveyed.external})
        except ModelError as error:
            raise ModelError(f"{path}: {error}; export or download it again") from error
        external = _open_external(path, names, stack)
        for tensor in surveyed.external:
            file = external[checked_name(tensor.location)]
            if tensor.offset + tensor.size_bytes > file.size_bytes:
                raise _too_short(path, tensor.name, tensor.location)
        yield ModelFiles(path, own, data, surveyed, external=external)


def external_names(path: Path) -> list[str]:
    """Return the names of files with external data, relative to the model; they need not exist.

    Raises:
        ModelError: as `open_model`, except for errors of those files.
    """
    with ExitStack() as stack:
        own = _open_own(path, stack)
        try:
            surveyed = survey(own.read(0, own.size_bytes), import_limits())
            return sorted({checked_name(tensor.location) for tensor in surveyed.external})
        except ModelError as error:
            raise ModelError(f"{path}: {error}; export or download it again") from error


def checked_name(location: str) -> str:
    """Return a location as a plain relative name. Raises ModelError for paths outside of the folder.

    >>> checked_name("./weights/part 1.bin")
    'weights/part 1.bin'
    """
    name = PurePosixPath(location)
    if name.is_absolute() or ".." in name.parts or not name.parts or "\0" in location:
        raise ModelError(f"its external data {location!r} lies outside of the model's folder")
    return name.as_posix()


def _open_own(path: Path, stack: ExitStack) -> HeldFile:
    try:
        descriptor = os.open(path, _READ)
    except (FileNotFoundError, NotADirectoryError):
        raise ModelError(f"{path}: no such file; give the path of an ONNX model") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read: {error}") from error
    stack.callback(os.close, descriptor)
    facts = os.fstat(descriptor)
    if not stat.S_ISREG(facts.st_mode):
        raise ModelError(f"{path}: no regular file; give the path of an ONNX model")
    if facts.st_size > _MAX_PROTOBUF_BYTES:
        raise ModelError(
            f"{path}: not an ONNX model: {facts.st_size} bytes, and none is larger than 2 GiB; save"
            " its weights as external data"
        )
    return HeldFile(descriptor, facts.st_size)


def _open_external(path: Path, names: list[str], stack: ExitStack) -> dict[str, HeldFile]:
    roots = _roots(path)
    folder = Path(os.path.abspath(path)).parent
    files, missing = {}, []
    for name in names:
        try:
            files[name] = _open_below(
                path, name, os.path.realpath(folder / name), roots, stack=stack
            )
        except (FileNotFoundError, NotADirectoryError):
            missing.append(name)
    if missing:
        raise ModelError(
            f"{path}: its weights are in other files, which are missing: {', '.join(missing[:10])};"
            " copy them beside the model"
        )
    return files


def _roots(path: Path) -> list[Path]:
    """Return the permitted folders for the files of the model, free of links."""
    folder = Path(os.path.abspath(path)).parent
    for revision in (folder, *folder.parents):
        blobs = revision.parent.parent / "blobs"
        if revision.parent.name == "snapshots" and blobs.is_dir():
            repository = Path(os.path.realpath(blobs.parent))
            roots = [repository / "snapshots" / revision.name, repository / "blobs"]
            if all(os.path.realpath(root) == str(root) for root in roots):
                return roots
    return [Path(os.path.realpath(folder))]


def _open_below(
    path: Path, name: str, real: str, roots: list[Path], *, stack: ExitStack
) -> HeldFile:
    """Open the resolved path of a name below one of the roots, without following links."""
    root = next((folder for folder in roots if Path(real).is_relative_to(folder)), None)
    if root is None:
        raise ModelError(
            f"{path}: its external data {name!r} lies outside of the model's folder ({real}); copy the"
            " file itself beside the model"
        )
    *folders, last = Path(real).relative_to(root).parts or (".",)
    descriptor = os.open(root, _FOLDER_FLAGS)
    try:
        for part in folders:
            inner = os.open(part, _FOLDER_FLAGS, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        file = os.open(last, _READ | os.O_NOFOLLOW, dir_fd=descriptor)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise ModelError(f"{path}: its external data {name!r} cannot be read: {error}") from error
    finally:
        os.close(descriptor)
    stack.callback(os.close, file)
    facts = os.fstat(file)
    if not stat.S_ISREG(facts.st_mode):
        raise ModelError(f"{path}: its external data {name!r} is no regular file")
    return HeldFile(file, facts.st_size)


def _too_short(path: Path, tensor: str, name: str) -> ModelError:
    return ModelError(
        f"{path}: the data of tensor {tensor!r} is not wholly in {name!r}; the files must lie beside"
        " the model, complete, as the exporter wrote them"
    )
