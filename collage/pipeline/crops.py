"""Which axes of outputs follow a padded axis, and how.

The rule of a crop, ceil(extent / divisor) + offset, is derived from shapes of the original model: of compiled
shapes and of smaller ones.
"""

from collections.abc import Mapping, Sequence

from collage.errors import OptionError
from collage.frontend.original_interface import OriginalInterface
from collage.option_text import PadRequest
from collage.runtime.fallback import ModelValue
from collage.runtime.padding import Crop, PaddedAxis

Shapes = Mapping[str, tuple[int, ...]]
ShapePair = tuple[Shapes, Shapes]
"""Shapes of the inputs and of the outputs of one call of the original model."""


def check_requests(requests: Sequence[PadRequest], interface: OriginalInterface) -> None:
    """Raise OptionError for an axis of `--pad` that the model does not have open."""
    if requests and not interface.is_dynamic:
        raise OptionError(
            f"--pad {requests[0].text}: every input of the model has one shape; leave --pad out"
        )
    for request in requests:
        value = _value(interface.inputs, request.input, request, "input")
        if value.shape is not None and not (
            request.axis < len(value.shape) and value.shape[request.axis] == -1
        ):
            raise OptionError(
                f"--pad {request.text}: {value} has no open axis {request.axis}; name one with a ?"
            )
        for name, _ in request.crops or ():
            _value(interface.outputs, name, request, "output")


def resolve_axes(
    requests: Sequence[PadRequest], interface: OriginalInterface, pairs: Sequence[ShapePair]
) -> tuple[PaddedAxis, ...]:
    """Return the padded axes with the rules of their crops.

    Args:
        requests: declared axes.
        interface: inputs and outputs of the model.
        pairs: shapes of calls that the original model answered.

    Raises:
        OptionError: no rule fits an axis of an output.
    """
    return tuple(
        PaddedAxis(
            request.input,
            request.axis,
            request.value,
            tuple(_crop(request, crop, pairs) for crop in _crops(request, interface)),
        )
        for request in requests
    )


def _crops(request: PadRequest, interface: OriginalInterface) -> list[tuple[str, int]]:
    if request.crops is not None:
        return list(request.crops)
    name = interface.dim_name(request.input, request.axis)
    return [
        (output.name, axis)
        for output in interface.outputs
        for axis in range(len(output.shape or ()))
        if name and interface.dim_name(output.name, axis) == name
    ]


def _crop(request: PadRequest, crop: tuple[str, int], pairs: Sequence[ShapePair]) -> Crop:
    output, axis = crop
    points = set()
    for inputs, outputs in pairs:
        shape = outputs[output]
        if axis >= len(shape):
            raise OptionError(
                f"--pad {request.text}: output {output!r} has no axis {axis}; its shape is {list(shape)}"
            )
        points.add((inputs[request.input][request.axis], shape[axis]))
    if len(points) < 2:
        raise OptionError(
            f"--pad {request.text}: no smaller shape shows how axis {axis} of {output!r} follows; compile a "
            "larger shape"
        )
    (first, first_out), (last, last_out) = min(points), max(points)
    divisor = 1
    if last_out != first_out:
        divisor = max(1, round((last - first) / (last_out - first_out)))
    rule = Crop(output, axis, divisor)
    rule = Crop(output, axis, divisor, last_out - rule.extent(last))
    for extent, output_extent in sorted(points):
        if rule.extent(extent) != output_extent:
            raise OptionError(
                f"--pad {request.text}: axis {axis} of {output!r} is {output_extent} for an extent of "
                f"{extent}, and {last_out} for {last}, which no crop follows; leave --pad out"
            )
    return rule


def _value(values: Sequence[ModelValue], name: str, request: PadRequest, side: str) -> ModelValue:
    for value in values:
        if value.name == name:
            return value
    names = ", ".join(value.name for value in values)
    raise OptionError(f"--pad {request.text}: the model has no {side} {name!r}; it has {names}")
