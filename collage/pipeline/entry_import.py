"""Import of the entries of a bundle: each file with its own part of the options."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from collage.entries import (
    ModelEntry,
    options_of,
    own_samples,
    require_distinct_functions,
    require_used_dims,
    shared_dims,
)
from collage.frontend import Model
from collage.frontend.default_inputs import taken_defaults, with_defaults
from collage.frontend.input_names import InputNames, input_names
from collage.frontend.isolated_import import guarded_import
from collage.frontend.sample_files import UserSamples, read_samples
from collage.frontend.samples import named_samples, shape_sets, with_samples
from collage.options import Options


def import_entry(
    entry: ModelEntry, entries: Sequence[str], options: Options, work_dir: Path
) -> Model:
    """Import the model of one entry with its shapes and samples.

    Args:
        entry: the entry.
        entries: names of all entries of the bundle.
        options: options of the bundle.
        work_dir: folder for the simplified files of all entries.

    Raises:
        OptionError: an option does not name its entry where there are several.
        CollageError: see `frontend.isolated_import.guarded_import`.
    """
    own = options_of(options, entry.name, entries)
    samples = read_samples(own.samples, own.inputs)
    names = input_names(entry.path) if samples or own.shapes else InputNames(())
    samples = named_samples(samples, names)
    defaults = taken_defaults(entry.path, names, samples, own.shapes)
    samples = with_defaults(samples, defaults, own.shapes)
    model = guarded_import(
        entry.path,
        dims=own.dims,
        shapes=shape_sets(samples, own.shapes),
        work_dir=work_dir,
        keep_half=options.target.has_half_precision,
        entry=entry.name,
        optional_dims=shared_dims(options, entries),
        taken_defaults=defaults,
    )
    return replace(with_samples(model, samples), defaults=defaults)


def read_entry_samples(sources: Sequence[Any], entries: Sequence[ModelEntry]) -> UserSamples:
    """Read the samples of a bundle; of several entries, the names of inputs begin with that of the entry.

    Raises:
        OptionError: a path holds no samples of any entry, or a file is damaged or too large.
        ModelError: a file is no model.
    """
    if len(entries) == 1:
        return read_samples(sources, {})
    names, sets = [entry.name for entry in entries], []
    for entry in entries:
        samples = read_samples(tuple(own_samples(sources, entry.name, names)), {})
        sets += [
            {f"{entry.name}/{name}": array for name, array in arrays.items()}
            for arrays in named_samples(samples, input_names(entry.path)).sets
        ]
    return UserSamples(tuple(sets))


def import_entries(
    entries: Sequence[ModelEntry], names: Sequence[str], options: Options, work_dir: Path
) -> tuple[Model, ...]:
    """Import the models of entries; `names` are those of all entries of the bundle.

    Raises:
        OptionError: two functions have one name, or an option does not name its entry.
        DimensionError: a dimension is in no entry, or unbound, unknown or contradictory.
    """
    models = tuple(import_entry(entry, names, options, work_dir) for entry in entries)
    if len(entries) == len(names):  # other entries, which run as originals, may have the dimension
        require_used_dims([model.absent_dims for model in models])
    require_distinct_functions(
        {model.entry: [function.name for function in model.functions] for model in models}
    )
    return models
