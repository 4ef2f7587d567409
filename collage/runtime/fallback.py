"""The fallback of a bundle: the original model, for inputs that no function of the executable takes.

It is a file of the bundle like any other, with a digest in the manifest. A model whose inputs or outputs are
text, sequences or maps has no executable: its bundle consists of the fallback alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from collage.runtime.function_names import MAIN
from collage.runtime.json_fields import Field, FieldError
from collage.runtime.manifest_limits import MAX_DIMENSIONS, MAX_EXTENT
from collage.runtime.value_types import ValueType, parse_type

FRAMEWORKS = ("onnxruntime", "openvino")
PRECISIONS = ("f32", "bf16")
MAX_PLACE = 1 << 16


@dataclass(frozen=True, slots=True)
class ModelValue:
    """An input or an output of the original model.

    Attributes:
        name: its name.
        type: its type.
        shape: extents of a tensor, -1 where any is possible; None where the rank is unknown too.
        has_default: whether callers may leave the input out.
        place: its position among the framework's inputs or outputs.
    """

    name: str
    type: ValueType
    shape: tuple[int, ...] | None = None
    has_default: bool = False
    place: int = 0

    def __str__(self) -> str:
        if not self.type.is_numeric:
            return f"{self.name}: {self.type}"
        dims = ["..."] if self.shape is None else ["?" if n < 0 else str(n) for n in self.shape]
        return f"{self.name}: {self.type.dtype}[{', '.join(dims)}]"


@dataclass(frozen=True, slots=True)
class Fallback:
    """The original model in a framework.

    Attributes:
        framework: one of `FRAMEWORKS`.
        file: name of the ONNX file in the bundle.
        weights: name of its external data in the bundle; "" without.
        inputs: inputs of the model.
        outputs: outputs of the model.
        precision: precision of matrix products in OpenVINO, default float32.
        entry: entry point that the model answers.
    """

    framework: str
    file: str
    inputs: tuple[ModelValue, ...]
    outputs: tuple[ModelValue, ...]
    weights: str = ""
    precision: str = "f32"
    entry: str = MAIN

    @property
    def files(self) -> tuple[str, ...]:
        """Names of its files in the bundle."""
        return (self.file, self.weights) if self.weights else (self.file,)


def fallback_document(fallback: Fallback) -> dict[str, object]:
    """Return a fallback's entry in a manifest, as `read_fallback` takes it."""
    inputs, outputs = (
        [
            {
                "name": value.name,
                "type": str(value.type),
                "shape": None if value.shape is None else list(value.shape),
                "has_default": value.has_default,
                "place": value.place,
            }
            for value in values
        ]
        for values in (fallback.inputs, fallback.outputs)
    )
    return {
        "entry": fallback.entry,
        "framework": fallback.framework,
        "precision": fallback.precision,
        "file": fallback.file,
        "weights": fallback.weights,
        "inputs": inputs,
        "outputs": outputs,
    }


def read_fallback(raw: Field) -> Fallback:
    """Return a fallback from its entry in a manifest. Raises FieldError for a missing or invalid field."""
    weights = raw["weights"]
    return Fallback(
        raw["framework"].one_of(FRAMEWORKS),
        raw["file"].file_name(),
        _values(raw["inputs"]),
        _values(raw["outputs"]),
        weights=weights.file_name() if weights.value else "",
        precision=raw["precision"].one_of(PRECISIONS),
        entry=raw["entry"].text(),
    )


def _values(raw: Field) -> tuple[ModelValue, ...]:
    values = tuple(map(_value, raw.items()))
    _check_names(raw, [value.name for value in values])
    return values


def _check_names(raw: Field, names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise FieldError(f"{raw.path} has the name {name!r} twice")


def _value(raw: Field) -> ModelValue:
    text, shape = raw["type"], raw["shape"]
    try:
        value_type = parse_type(text.text())
    except ValueError:
        raise text.fault("a type such as tensor(float32)") from None
    extents = None
    if shape.value is not None:
        extents = tuple(extent.integer(-1, MAX_EXTENT) for extent in shape.items())
        if len(extents) > MAX_DIMENSIONS:
            raise shape.fault(f"a shape of at most {MAX_DIMENSIONS} dimensions")
    return ModelValue(
        raw["name"].text(),
        value_type,
        extents,
        has_default=raw["has_default"].flag(),
        place=raw["place"].integer(0, MAX_PLACE),
    )
