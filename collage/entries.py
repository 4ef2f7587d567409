"""Entries of a bundle: ONNX files of one application (encoder and decoder) that share a bundle.

Each file is one entry, with a name, shape sets and golden data of its own. A model in one file is the entry
`main`. Options that name a dimension or an input say whose it is: `decoder/past`. A dimension without an
entry, such as `batch`, is that of all entries that have it.
"""

import os
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

from collage.errors import DimensionError, ModelError, OptionError
from collage.options import Options
from collage.runtime.function_names import MAIN, function_names
from collage.runtime.virtual_machine import on_device

if TYPE_CHECKING:
    from tvm import IRModule

Value = TypeVar("Value")

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")

ModelPath = str | os.PathLike[str]
ModelPaths = ModelPath | Sequence[ModelPath] | Mapping[str, ModelPath]
"""A file or folder, or several, where `NAME=PATH` names an entry; or the files by names of entries."""


@dataclass(frozen=True)
class ModelEntry:
    """One ONNX file of a bundle, with the name of its entry."""

    name: str
    path: Path

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or self.name.startswith("collage_"):
            raise OptionError(
                f"{self.name!r} cannot name an entry: use at most 100 letters, digits, '_', '-' and '.', not "
                f"beginning with 'collage_'; choose a name for {self.path} with NAME=PATH"
            )


def find_entries(models: ModelPaths) -> tuple[ModelEntry, ...]:
    """Return the entries of a bundle, in the order of `models`.

    Names are the stems of the files, unless chosen; the only file without a chosen name is `main`. A folder
    stands for its files `*.onnx`, by name.

    Raises:
        OptionError: two entries have one name, or a name is invalid.
        ModelError: a folder has no ONNX file.

    >>> [entry.name for entry in find_entries(["a/encoder.onnx", "dec=a/decoder.onnx"])]
    ['encoder', 'dec']
    >>> find_entries("a/encoder.onnx")[0].name
    'main'
    """
    if isinstance(models, Mapping):
        paths = [(name, Path(path)) for name, path in models.items()]
    else:
        several = [models] if isinstance(models, str | os.PathLike) else models
        paths = [named for model in several for named in _named_paths(os.fspath(model))]
    if not paths:
        raise OptionError("no model: give an ONNX file, or a folder of such files")
    default = None if len(paths) > 1 else MAIN
    entries = tuple(ModelEntry(name or default or path.stem, path) for name, path in paths)
    for name, count in Counter(entry.name for entry in entries).items():
        if count > 1:
            raise OptionError(f"{count} entries are called {name!r}: choose names with NAME=PATH")
    require_distinct_functions({entry.name: function_names(1, entry.name) for entry in entries})
    return entries


def is_relax_module(models: "ModelPaths | IRModule") -> "TypeGuard[IRModule]":
    """Tell whether `models` is a Relax module; TVM is loaded then, and is not loaded here."""
    tvm = sys.modules.get("tvm")
    return tvm is not None and isinstance(models, tvm.IRModule)


def options_of(options: Options, entry: str, entries: Sequence[str]) -> Options:
    """Return the options of one entry, with names of inputs and dimensions without the entry's before them.

    Dimensions that name no entry are kept, for those entries that have them (`shared_dims`). Of a path among
    the samples, the folder or `.npz` file called as the entry is its own.

    Raises:
        OptionError: an option does not name its entry where there are several.
    """
    if tuple(entries) == (MAIN,):
        return options
    dims = {}
    for name, size in options.dims.items():
        owner, own_name = _split(name, entries)
        if owner in ("", entry):
            dims[own_name] = size
    shapes: list[Mapping[str, tuple[int, ...]]] = []
    for shape_set in options.shapes:
        own_set = _own(shape_set, entry, entries)
        if own_set and own_set not in shapes:
            shapes.append(own_set)
    return replace(
        options,
        dims=dims,
        shapes=tuple(shapes),
        inputs=_own(options.inputs, entry, entries),
        pad=tuple(_own(dict.fromkeys(options.pad), entry, entries)),
        samples=tuple(own_samples(options.samples, entry, entries)),
    )


def shared_dims(options: Options, entries: Sequence[str]) -> frozenset[str]:
    """Return the dimensions of all entries that have them; none where there is one entry."""
    if len(entries) == 1:
        return frozenset()
    return frozenset(name for name in options.dims if not _split(name, entries)[0])


def require_used_dims(absent: Sequence[Collection[str]]) -> None:
    """Check that every shared dimension is one of some entry.

    Args:
        absent: shared dimensions that an entry lacks, for each entry.

    Raises:
        DimensionError: no entry has a dimension of this name.
    """
    names = set.intersection(*map(set, absent)) if absent else set()
    if names:
        raise DimensionError(f"no entry has a dimension named {' or '.join(sorted(names))}")


def bundle_functions(options: Options, entries: Sequence[str]) -> tuple[str, ...]:
    """Return the names of all functions of a bundle, in the order of the entries.

    Raises:
        OptionError: two functions have one name, or an option does not name its entry.
    """
    functions = {entry: entry_functions(options, entry, entries) for entry in entries}
    require_distinct_functions(functions)
    return tuple(name for names in functions.values() for name in names)


def entry_functions(options: Options, entry: str, entries: Sequence[str]) -> tuple[str, ...]:
    """Return the names of one entry's functions. Raises OptionError where an option names no entry."""
    return function_names(len(options_of(options, entry, entries).shapes), entry)


def require_distinct_functions(functions: Mapping[str, Sequence[str]]) -> None:
    """Check the names of functions, by entry: those of two entries, and their variants on a GPU, differ.

    Raises:
        OptionError: two entries would have a function of one name.
    """
    owners: dict[str, str] = {}
    for entry, names in functions.items():
        for symbol in (*names, *map(on_device, names)):
            owner = owners.setdefault(symbol, entry)
            if owner != entry:
                raise OptionError(
                    f"the entries {owner!r} and {entry!r} would have a function {symbol} each; choose other "
                    "names with NAME=PATH"
                )


def entry_of(function: str, entries: Sequence[ModelEntry], options: Options) -> ModelEntry:
    """Return the entry of a function.

    Raises:
        OptionError: no entry has such a function.
    """
    names = [entry.name for entry in entries]
    for entry in entries:
        if function in entry_functions(options, entry.name, names):
            return entry
    raise OptionError(
        f"there is no function {function!r}, only {', '.join(bundle_functions(options, names))}"
    )


def _named_paths(text: str) -> Iterator[tuple[str, Path]]:
    """Yield the chosen name, or "", and the path of each file that a text stands for."""
    name, separator, path_text = text.partition("=")
    is_named = bool(separator) and not Path(text).exists()
    path = Path(path_text if is_named else text)
    if not path.is_dir():
        yield (name if is_named else ""), path
        return
    files = sorted(path.glob("*.onnx"))
    if not files:
        raise ModelError(f"{path} has no file *.onnx; give ONNX files, or a folder of them")
    if is_named and len(files) > 1:
        raise OptionError(f"{text} names {len(files)} files: name each one, NAME=FILE")
    for file in files:
        yield (name if is_named else ""), file


def _own(values: Mapping[str, Value], entry: str, entries: Sequence[str]) -> dict[str, Value]:
    """Return the values of an entry's inputs, without its name before theirs. Raises OptionError."""
    own = {}
    for name, value in values.items():
        owner, own_name = _split(name, entries)
        if not owner and len(entries) > 1:
            raise OptionError(_whose(name, entries))
        if owner in ("", entry):
            own[own_name] = value
    return own


def own_samples(sources: Any, entry: str, entries: Sequence[str]) -> Iterator[Any]:
    """Yield the samples of an entry. Raises OptionError for a path without any entry's samples."""
    for source in [sources] if isinstance(sources, str | Path | Mapping) else sources:
        if isinstance(source, Mapping):
            if own := _own(source, entry, entries):
                yield own
        elif len(entries) == 1:
            yield source
        else:
            paths = {name: _sample_path(Path(source), name) for name in entries}
            if not any(paths.values()):
                raise OptionError(
                    f"--samples {source}: the bundle has several entries; give a folder with a folder, or an "
                    f".npz file, for each of them, called {' or '.join(entries)}"
                )
            if path := paths[entry]:
                yield path


def _sample_path(source: Path, entry: str) -> Path | None:
    """Return the folder or file of an entry's samples below `source`, or None."""
    candidates = (source / entry, source / f"{entry}.npz")
    return next((path for path in candidates if path.exists()), None)


def _split(name: str, entries: Sequence[str]) -> tuple[str, str]:
    """Return the entry that a name begins with, or "", and the remaining name."""
    owner, separator, own_name = name.partition("/")
    return (owner, own_name) if separator and owner in entries else ("", name)


def _whose(name: str, entries: Sequence[str]) -> str:
    options = " or ".join(f"{entry}/{name}" for entry in entries)
    return f"the bundle has several entries: say whose input {name!r} is, {options}"
