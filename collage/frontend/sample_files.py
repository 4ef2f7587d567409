"""Reading of the user's samples: real inputs of a model, as files or as arrays.

    A.npz         one sample set; its keys are names of inputs, or arr_0, arr_1, ... in their order
    x.npy         the value of the input `x`; all .npy files of one folder, or of one call, are one set
                  A lone array is that of a model with one input, whatever its name.
    FOLDER        every .npz file, the .npy files together, and every folder in it

A set need not name all inputs: the others are generated. `--input` adds a value to every set. Its literal
values are settings (a sampling rate, a target shape): they also belong to generated inputs.
"""

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from collage.errors import OptionError
from collage.import_limits import MEMORY, import_limits
from collage.runtime.arrays import restored

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class UserSamples:
    """The user's inputs, before the model is read.

    Attributes:
        sets: arrays of every sample set by input name, in the user's order.
        settings: literal values by input name, which hold for all sets.
    """

    sets: tuple[Arrays, ...] = ()
    settings: Arrays = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.sets or self.settings)


NO_SAMPLES = UserSamples()


def read_samples(sources: Any, inputs: Mapping[str, Any]) -> UserSamples:
    """Read the values of the options `samples` and `inputs`.

    Args:
        sources: a path, a mapping of arrays by input name, or a sequence of these.
        inputs: values by input name; a path is a .npy file, anything else a literal.

    Raises:
        OptionError: a path holds no samples, or a file is damaged or too large.
    """
    single = isinstance(sources, str | Path | Mapping)
    listed: Sequence[Any] = [sources] if single else list(sources)
    loose: dict[str, np.ndarray] = {}
    sets: list[Arrays] = []
    for source in listed:
        if isinstance(source, Mapping):
            sets.append(
                {str(name): _array(f"samples[{name!r}]", value) for name, value in source.items()}
            )
        elif Path(source).suffix == ".npy":
            loose[Path(source).stem] = read_array(Path(source))
        else:
            sets += _read_path(Path(source))
    sets += [loose] if loose else []
    common = {n: read_array(v) for n, v in inputs.items() if isinstance(v, Path)}
    settings = {
        name: _array(f"--input {name}", value)
        for name, value in inputs.items()
        if not isinstance(value, Path)
    }
    if common:
        sets = [{**arrays, **common} for arrays in sets or [{}]]
    return UserSamples(tuple(sets), settings)


def read_array(file: Path) -> np.ndarray:
    """Read a .npy file. Raises OptionError."""
    try:
        value: np.ndarray = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise OptionError(f"the sample {file} is no .npy file: {_reason(error)}") from error
    if not isinstance(value, np.ndarray):
        raise OptionError(f"the sample {file} is no .npy file; give .npz files with --samples")
    return restored(value)


def _read_path(path: Path) -> list[Arrays]:
    if path.is_dir():
        sets = list(_read_folder(path))
        if not sets:
            raise OptionError(f"--samples {path}: the folder holds no .npz and no .npy file")
        return sets
    if path.suffix != ".npz":
        missing = "" if path.exists() else "there is no such file; "
        raise OptionError(
            f"--samples {path}: {missing}give .npz or .npy files, or a folder of them"
        )
    return [read_set(path)]


def _read_folder(folder: Path) -> Iterator[Arrays]:
    arrays = {file.stem: read_array(file) for file in sorted(folder.glob("*.npy"))}
    if arrays:
        yield arrays
    for entry in sorted(folder.iterdir()):
        if entry.is_dir():
            yield from _read_folder(entry)
        elif entry.suffix == ".npz":
            yield read_set(entry)


def read_set(file: Path | BinaryIO, label: str = "") -> Arrays:
    """Read an .npz file. Its names may hold slashes, and its expanded size is checked before.

    Args:
        file: path or content.
        label: name in messages; "": the path.

    Raises:
        OptionError: it is no .npz file, is too large, or holds no array.
    """
    label = label or str(file)
    limit_bytes = import_limits().memory_bytes
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            size_bytes = sum(entry.file_size for entry in entries)
            if size_bytes > limit_bytes:
                raise OptionError(
                    f"the sample {label} takes {size_bytes} bytes, more than {limit_bytes}; give smaller "
                    f"samples, or set {MEMORY} higher"
                )
            arrays = {}
            for entry in entries:
                with archive.open(entry) as stream:
                    value = np.lib.format.read_array(stream, allow_pickle=False)
                arrays[entry.filename.removesuffix(".npy")] = restored(value)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, NotImplementedError) as error:
        raise OptionError(f"the sample {label} is no .npz file: {_reason(error)}") from error
    if not arrays:
        raise OptionError(
            f"the sample {label} holds no array; its keys are names of the model's inputs"
        )
    return arrays


def _array(label: str, value: object) -> np.ndarray:
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise OptionError(f"{label} is no array: {_reason(error)}") from error
    if array.dtype == np.dtype(object):
        raise OptionError(f"{label} is no array of numbers; its rows may have different lengths")
    return array


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error) or type(error).__name__).splitlines()[0]
