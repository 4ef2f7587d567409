"""Positions of an original model's inputs and outputs in OpenVINO, which may order them otherwise.

OpenVINO reads an input with a default as a constant, so such a model is no fallback in OpenVINO.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from collage.backends.telemetry import import_openvino
from collage.errors import InputError
from collage.runtime.fallback import Fallback, ModelValue


def placed_in_openvino(fallback: Fallback, file: Path) -> Fallback:
    """Return the fallback with the positions of its values in OpenVINO.

    Raises:
        InputError: OpenVINO does not read the file, or reads it with other inputs or outputs.
    """
    try:
        model = import_openvino().Core().read_model(str(file))
    except RuntimeError as error:
        raise InputError(f"OpenVINO does not read the original file: {error}") from error
    if len(model.inputs) != len(fallback.inputs):
        raise InputError("OpenVINO reads the original file with other inputs")
    return replace(
        fallback,
        inputs=_placed(fallback.inputs, [port.get_names() for port in model.inputs]),
        outputs=_placed(fallback.outputs, [port.get_names() for port in model.outputs]),
    )


def _placed(values: Sequence[ModelValue], ports: Sequence[set[str]]) -> tuple[ModelValue, ...]:
    places = {name: place for place, names in enumerate(ports) for name in names}
    missing = sorted({value.name for value in values} - set(places))
    if missing:
        raise InputError(f"OpenVINO reads the original file without {missing[0]!r}")
    return tuple(replace(value, place=places[value.name]) for value in values)
