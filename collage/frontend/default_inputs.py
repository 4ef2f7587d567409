"""Inputs with a default that the user gives values or shapes for.

A default is a constant of the functions, so that it can be folded. A user who gives a value for such an
input wants functions that take it: then it is an input like any other, and calls that leave it out have its
default.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx

from collage.frontend.importer import ShapeSet
from collage.frontend.input_names import InputNames
from collage.frontend.load import dense_tensor, parse_model
from collage.frontend.model_files import open_model
from collage.frontend.sample_files import UserSamples


def taken_defaults(
    path: Path, names: InputNames, samples: UserSamples, shapes: Sequence[ShapeSet]
) -> dict[str, np.ndarray]:
    """Return the defaults of the inputs that the functions take, by name.

    Args:
        path: ONNX file.
        names: names of its inputs.
        samples: the user's values.
        shapes: the user's shapes.

    Raises:
        ModelError: the file cannot be read.
    """
    sources: list[Collection[str]] = [samples.settings, *samples.sets, *shapes]
    mentioned = {name for source in sources for name in source}
    taken = mentioned.intersection(names.optional)
    return _defaults(path, taken) if taken else {}


def _defaults(path: Path, names: Collection[str]) -> dict[str, np.ndarray]:
    with open_model(path) as files:
        graph = parse_model(files).graph
        part = onnx.ModelProto()
        part.graph.initializer.extend(t for t in graph.initializer if t.name in names)
        part.graph.sparse_initializer.extend(
            sparse for sparse in graph.sparse_initializer if sparse.values.name in names
        )
        files.fill(part)
    tensors = [*part.graph.initializer, *map(dense_tensor, part.graph.sparse_initializer)]
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in tensors}


def with_defaults(
    samples: UserSamples, defaults: Mapping[str, np.ndarray], shapes: Sequence[ShapeSet]
) -> UserSamples:
    """Return the samples with the defaults of the inputs that a set leaves out.

    Args:
        samples: the user's values by input name.
        defaults: defaults of the inputs that the functions take.
        shapes: the user's shapes; a default of another shape is left out where there is no set.

    >>> x, t = np.zeros(3), np.zeros(1)
    >>> [list(s) for s in with_defaults(UserSamples(({"x": x}, {"x": x, "t": t})), {"t": t}, ()).sets]
    [['t', 'x'], ['t', 'x']]
    """
    missing = {name: value for name, value in defaults.items() if name not in samples.settings}
    if samples.sets:
        sets = tuple({**missing, **arrays} for arrays in samples.sets)
        return replace(samples, sets=sets)
    fitting = {
        name: value
        for name, value in missing.items()
        if all(tuple(shape.get(name, value.shape)) == value.shape for shape in shapes)
    }
    return replace(samples, settings={**samples.settings, **fitting})
