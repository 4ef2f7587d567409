"""The user's samples of an imported function: shape sets, and arrays of the inputs' types.

Sets whose shapes agree are several samples of one function; sets with other shapes make further functions.
Arrays are converted to the types of the model's inputs where no value is lost, except for the rounding of
floats.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from collage.errors import OptionError
from collage.frontend.importer import ShapeSet
from collage.frontend.input_names import InputNames
from collage.frontend.model import Function, Model
from collage.frontend.sample_files import Arrays, UserSamples
from collage.graph.dataflow import TensorType
from collage.runtime.arrays import numpy_dtype

_INTEGERS = "iub"


def named_samples(samples: UserSamples, names: InputNames) -> UserSamples:
    """Return the samples by input name: `arr_N` is the input N, a lone array that of a lone input.

    Inputs with a default are not counted; their samples have their names.

    >>> lone = UserSamples(({"photo": np.zeros(2)},))
    >>> list(named_samples(lone, InputNames(("x",))).sets[0])
    ['x']
    """
    return replace(samples, sets=tuple(_named(arrays, names) for arrays in samples.sets))


def _named(arrays: Arrays, names: InputNames) -> Arrays:
    required = names.required
    if len(arrays) == len(required) == 1 and not set(arrays) & set(names.optional):
        return {required[0]: next(iter(arrays.values()))}
    places = {f"arr_{number}": name for number, name in enumerate(required)}
    if set(arrays) <= set(places) and not set(arrays) & {*required, *names.optional}:
        return {places[name]: array for name, array in arrays.items()}
    return arrays


def shape_sets(samples: UserSamples, shapes: Sequence[ShapeSet]) -> tuple[ShapeSet, ...]:
    """Return the shape sets of the functions: `shapes`, with what they leave open from the samples.

    >>> x, y = np.zeros((1, 8)), np.zeros((2, 8))
    >>> shape_sets(UserSamples(({"x": x}, {"x": y}, {"x": x})), ())
    ({'x': (1, 8)}, {'x': (2, 8)})
    >>> shape_sets(UserSamples(({"x": x, "m": y},)), [{"x": (1, 8)}])
    ({'x': (1, 8), 'm': (2, 8)},)
    """
    common = _shapes_of(samples.settings)
    groups: list[dict[str, tuple[int, ...]]] = []
    for arrays in samples.sets:
        own = {**_shapes_of(arrays), **common}
        group = next((group for group in groups if _agree(group, own)), None)
        if group is None:
            groups.append(own)
        else:
            group.update(own)
    groups = groups or ([common] if common else [])
    if not shapes:
        return tuple(groups)
    completed: list[ShapeSet] = []
    for written in shapes:
        fitting = [{**written, **group} for group in groups if _agree(written, group)]
        completed += fitting or [written]
    return tuple(completed)


def _agree(shapes: ShapeSet, others: ShapeSet) -> bool:
    """Tell whether the shapes of all common inputs are equal."""
    return all(shapes.get(name, shape) == shape for name, shape in others.items())


def _shapes_of(arrays: Arrays) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all arrays but scalars, which fit inputs of any shape."""
    return {name: array.shape for name, array in arrays.items() if array.ndim}


def with_samples(model: Model, samples: UserSamples) -> Model:
    """Return the model with the sample sets of every function.

    Raises:
        OptionError: a sample fits no function: an unknown input, another shape, or another type.
    """
    if not samples:
        return model
    inputs = model.functions[0].graph.inputs
    for name in (name for arrays in (samples.settings, *samples.sets) for name in arrays):
        if name not in inputs:
            raise OptionError(
                f"the samples have a value of {name!r}, and the model has no such input; its inputs are "
                + (", ".join(inputs) or "none")
            )
    fitting: dict[str, list[Arrays]] = {function.name: [] for function in model.functions}
    for position, arrays in enumerate(samples.sets):
        function = _function_of(model, arrays, position)
        fitting[function.name].append(_converted_all(function, arrays))
    return replace(
        model,
        notes=(*model.notes, _note(samples)),
        functions=tuple(
            _with_marked_bodies(
                replace(
                    function,
                    sample_sets=tuple(fitting[function.name]),
                    settings=_converted_all(function, samples.settings),
                    origin=model.sha256,
                )
            )
            for function in model.functions
        ),
    )


def _with_marked_bodies(function: Function) -> Function:
    """Return the function with bodies that know the digest of its samples."""
    bodies = (
        replace(
            body,
            function=_with_marked_bodies(
                replace(body.function, caller_samples=function.sample_digest)
            ),
        )
        for body in function.bodies
    )
    return replace(function, bodies=tuple(bodies))


def _note(samples: UserSamples) -> str:
    """Name what was given, without values."""
    count = len(samples.sets)
    sets = f"{count} sample set{'s' if count > 1 else ''}" if count else ""
    settings = f"values of {', '.join(sorted(samples.settings))}" if samples.settings else ""
    return f"measured and judged on the user's {' and '.join(filter(None, (sets, settings)))}"


def _function_of(model: Model, arrays: Arrays, position: int) -> Function:
    misfits = []
    for function in model.functions:
        misfit = next(
            (n for n, a in arrays.items() if not _fits(a, function.type_of(n).shape)), None
        )
        if misfit is None:
            return function
        misfits.append(
            f"{misfit} is {list(function.type_of(misfit).shape or ())} in {function.name}"
        )
    shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items())
    raise OptionError(
        f"sample set {position + 1} has shapes that no function of the model has ({shapes}): "
        f"{'; '.join(misfits)}. Give its shapes with --shape too, or leave --shape and --dim out"
    )


def _fits(array: np.ndarray, shape: Sequence[int] | None) -> bool:
    if shape is None or array.ndim == 0:
        return True
    return array.shape == tuple(shape) or (array.size == 1 and set(shape) <= {1})


def _converted_all(function: Function, arrays: Arrays) -> dict[str, np.ndarray]:
    return {
        name: converted(name, array, function.graph.types[name]) for name, array in arrays.items()
    }


def converted(name: str, array: np.ndarray, tensor: TensorType) -> np.ndarray:
    """Return the array with an input's type and shape; a scalar fills the shape.

    >>> converted("sr", np.asarray(16000), TensorType((1,), "int32"))
    array([16000], dtype=int32)

    Raises:
        OptionError: the shape or the type does not fit, or an integer is out of range.
    """
    if not _fits(array, tensor.shape):
        raise OptionError(
            f"the sample of input {name} has the shape {list(array.shape)}, and the input "
            f"{list(tensor.shape)}"
        )
    dtype = numpy_dtype(tensor.dtype)
    if array.dtype != dtype and (obstacle := _obstacle(array, dtype)):
        raise OptionError(
            f"input {name} is {tensor.dtype}, and its sample {array.dtype}: {obstacle}; convert it "
            "before"
        )
    value = array.astype(dtype)
    return np.ascontiguousarray(
        np.full(tensor.shape, value, dtype) if array.ndim == 0 else value.reshape(tensor.shape)
    ).reshape(tensor.shape)


def _obstacle(array: np.ndarray, dtype: np.dtype) -> str:
    """Return why a conversion would lose values, "" where it does not."""
    if array.dtype.kind in "USO" or dtype.kind in "USO":
        return "texts and numbers are different"
    if dtype.kind not in _INTEGERS:
        return ""
    if array.dtype.kind not in _INTEGERS:
        return "floats are no integers"
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    outside = array.size and (int(array.min()) < low or int(array.max()) > high)
    return "some values are out of range" if outside else ""
