"""The open inference protocol, version 2, over HTTP: bytes to arrays and back.

A request is JSON, or JSON followed by the raw little-endian bytes of the tensors that say
`binary_data_size`, in order; the header `Inference-Header-Content-Length` tells where the JSON ends.
Every part has one type, checked before its use; errors name the part. A `null` counts as absent
where a field is optional: some clients write all fields.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from collage.errors import BundleError, InputError
from collage.runtime.fallback import Fallback, ModelValue
from collage.runtime.manifest import Signature, Tensor
from containers.serving.bounded_json import JsonLimits, parse_json
from containers.serving.tensors import DATATYPES, checked_shape, from_bytes, from_json, shown

HEADER_LENGTH = "Inference-Header-Content-Length"
MAX_ID = 1024
_OPTIONAL = {"parameters": {"optional": True}}
_NAMES = {numpy_name: name for name, numpy_name in DATATYPES.items()}
Object = dict[str, Any]


@dataclass(frozen=True)
class Request:
    """Inputs by name, and requested outputs with their binary flag; empty is all, with the flag `binary`."""

    id: str
    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, bool]
    binary: bool


@dataclass(frozen=True)
class Answer:
    """A body, the length of its JSON if bytes of tensors follow, and its content encoding, "" without."""

    body: bytes
    header_length: int | None
    encoding: str = ""


def check_types(signatures: Sequence[Signature]) -> None:
    """Raise BundleError for a type outside the protocol, before the first connection."""
    if not signatures:
        raise BundleError(
            "the bundle has an entry of the original model alone, with types that this server does not "
            "carry; call it from Python"
        )
    for signature in signatures:
        for tensor in (*signature.inputs, *signature.outputs):
            if tensor.dtype not in _NAMES:
                raise BundleError(
                    f"{tensor.name!r} is {tensor.dtype}, which this server does not carry; known: "
                    f"{', '.join(_NAMES)}. Give the model a Cast at its border, or call it from Python."
                )


def json_length(header_length: str | None, body_bytes: int) -> int:
    """Return the length of a body's JSON, in bytes. Raises InputError for a length outside the body."""
    if header_length is None:
        return body_bytes
    text = header_length.strip()
    if not text.isascii() or not text.isdecimal() or len(text) > 15 or int(text) > body_bytes:
        raise InputError(f"{HEADER_LENGTH}: {shown(text)} is no length within the body")
    return int(text)


def parse_request(
    body: bytearray,
    header_length: str | None,
    signatures: Sequence[Signature],
    limits: JsonLimits,
    *,
    defaults: Sequence[str] = (),
) -> Request:
    """Parse the body of an inference request. Raises InputError with the invalid part.

    Args:
        body: JSON, and the bytes of tensors.
        header_length: length of the JSON, if bytes follow.
        signatures: functions of the model.
        limits: limits of the JSON.
        defaults: names of the inputs that may be left out.
    """
    end = json_length(header_length, len(body))
    raw = _of(dict, parse_json(body if end == len(body) else body[:end], limits), "the request")
    binary = _flag(_parameters(raw, "the request"), "binary_data_output", False)
    names = list(dict.fromkeys([*(tensor.name for tensor in signatures[0].inputs), *defaults]))
    inputs, tail = _inputs(raw, memoryview(body)[end:], names)
    if tail:
        raise InputError(f"{len(tail)} bytes follow the tensors that the request describes")
    outputs = {}
    for entry in _entries(raw, "outputs", optional=True):
        name = _name(entry, "an output")
        if name in outputs:
            raise InputError(f"the output {shown(name)} is requested twice")
        outputs[name] = _flag(_parameters(entry, f"output {shown(name)}"), "binary_data", binary)
    output_names = {tensor.name for signature in signatures for tensor in signature.outputs}
    if unknown := sorted(set(outputs) - output_names):
        raise InputError(
            f"unknown output {shown(unknown[0])}; there is {', '.join(sorted(output_names))}"
        )
    identity = _of(str, _or_default(raw, "id", ""), "the id")
    if len(identity) > MAX_ID:
        raise InputError(f"the id has more than {MAX_ID} characters")
    return Request(identity, inputs, outputs, binary)


def render_answer(
    model: str, version: str, request: Request, outputs: Mapping[str, np.ndarray]
) -> Answer:
    """Return the body with the requested outputs. Raises InputError for NaN in JSON."""
    selected = requested_outputs(request, outputs)
    entries, chunks = [], []
    for name, binary in selected.items():
        value = outputs[name]
        entry: Object = {
            "name": name, "datatype": _NAMES[value.dtype.name], "shape": list(value.shape),
        }  # fmt: skip
        if binary:
            chunks.append(np.ascontiguousarray(value).tobytes())
            entry["parameters"] = {"binary_data_size": len(chunks[-1])}
        else:
            entry["data"] = _json_data(name, value)
        entries.append(entry)
    raw: Object = {"model_name": model, "model_version": version, "outputs": entries}
    if request.id:
        raw["id"] = request.id
    text = json.dumps(raw, allow_nan=False).encode()
    return Answer(b"".join([text, *chunks]), len(text) if chunks else None)


def requested_outputs(request: Request, outputs: Mapping[str, object]) -> Mapping[str, bool]:
    """Return the requested names with their binary flags."""
    return request.outputs or dict.fromkeys(outputs, request.binary)


def model_metadata(
    model: str,
    version: str,
    signatures: Sequence[Signature],
    fallback: Fallback | None = None,
    *,
    optional: Collection[str] = (),
) -> Object:
    """Return the model's metadata; a dimension of several sizes is -1.

    An input with a default has the parameter `optional`.

    Args:
        model: name of the model.
        version: version of the model.
        signatures: its functions.
        fallback: original model for other shapes; None without.
        optional: names of the inputs that may be left out.
    """
    sides = (
        [signature.inputs for signature in signatures],
        [signature.outputs for signature in signatures],
    )
    inputs, outputs = ([_merged(same) for same in zip(*side, strict=True)] for side in sides)
    if fallback is not None:
        inputs, outputs = _opened(inputs, fallback.inputs), _opened(outputs, fallback.outputs)
        listed = {tensor["name"] for tensor in inputs}
        inputs += [tensor for tensor in _optional(fallback.inputs) if tensor["name"] not in listed]
    inputs = [tensor | _OPTIONAL if tensor["name"] in optional else tensor for tensor in inputs]
    return {
        "name": model, "versions": [version], "platform": "collage", "inputs": inputs,
        "outputs": outputs,
    }  # fmt: skip


def _inputs(
    raw: Object, tail: memoryview, names: Sequence[str]
) -> tuple[dict[str, np.ndarray], memoryview]:
    inputs: dict[str, np.ndarray] = {}
    for entry in _entries(raw, "inputs"):
        name = _name(entry, "an input")
        if name in inputs:
            raise InputError(f"the input {name!r} is given twice")
        if name not in names:
            raise InputError(f"unknown input {shown(name)}; expected {', '.join(names)}")
        datatype = _of(str, _get(entry, "datatype", f"input {name!r}"), f"the datatype of {name!r}")
        if datatype not in DATATYPES:
            raise InputError(
                f"input {name!r} has the datatype {shown(datatype)}; known: {', '.join(DATATYPES)}"
            )
        dtype = np.dtype(DATATYPES[datatype])
        shape = checked_shape(name, _get(entry, "shape", f"input {name!r}"))
        size = _parameters(entry, f"input {name!r}").get("binary_data_size")
        if size is None:
            data = _get(entry, "data", f"input {name!r}")
            inputs[name] = from_json(name, data, dtype, shape)
        else:
            inputs[name] = from_bytes(name, tail, size, dtype, shape=shape)
            if entry.get("data") is not None:
                raise InputError(f"input {name!r} has both 'data' and 'binary_data_size'")
            tail = tail[inputs[name].nbytes :]
    return inputs, tail


def _entries(raw: Object, key: str, optional: bool = False) -> list[Object]:
    value = _or_default(raw, key, []) if optional else _get(raw, key, "the request")
    entries: list[object] = _of(list, value, repr(key))
    return [_of(dict, entry, f"an entry of {key!r}") for entry in entries]


def _name(entry: Object, place: str) -> str:
    name: str = _of(str, _get(entry, "name", place), f"the name of {place}")
    return name


def _parameters(raw: Object, place: str) -> Object:
    parameters: Object = _of(dict, _or_default(raw, "parameters", {}), f"'parameters' of {place}")
    return parameters


def _flag(parameters: Object, key: str, default: bool) -> bool:
    return bool(_of(bool, _or_default(parameters, key, default), repr(key)))


def _or_default(raw: Object, key: str, default: object) -> object:
    value = raw.get(key)
    return default if value is None else value


def _get(raw: Object, key: str, place: str) -> object:
    if key not in raw:
        raise InputError(f"the request is no inference request: {place}: {key!r} is missing")
    return raw[key]


def _of(kind: type, value: object, place: str) -> Any:
    if type(value) is not kind:
        words = {dict: "an object", list: "a list", str: "a string", bool: "true or false"}
        raise InputError(
            f"the request is no inference request: {place} is {shown(value)}, not {words[kind]}"
        )
    return value


def _json_data(name: str, value: np.ndarray) -> list[Any]:
    if value.dtype.kind == "f" and not np.isfinite(value).all():
        raise InputError(
            f"output {name!r} holds NaN or infinity, which JSON cannot say; ask for it with the "
            "parameter binary_data"
        )
    values: list[Any] = value.ravel().tolist()
    return values


def _opened(tensors: Sequence[Object], values: Sequence[ModelValue]) -> list[Object]:
    """Return the tensors with the shapes of the original model, whose open dimensions are -1."""
    shapes = {value.name: value.shape for value in values}
    return [
        tensor | {"shape": [-1] if (shape := shapes.get(tensor["name"])) is None else list(shape)}
        for tensor in tensors
    ]


def _optional(values: Sequence[ModelValue]) -> list[Object]:
    """Return the inputs with a default, of the types that the protocol carries."""
    return [
        {
            "name": value.name,
            "datatype": _NAMES[value.type.dtype],
            "shape": [-1] if value.shape is None else list(value.shape),
        }
        for value in values
        if value.has_default and value.type.is_numeric and value.type.dtype in _NAMES
    ]


def _merged(same: Sequence[Tensor]) -> Object:
    shapes = [tensor.shape for tensor in same]
    first = shapes[0]
    if first is None or any(shape is None or len(shape) != len(first) for shape in shapes):
        shape = [-1]
    else:
        columns = zip(*(shape or () for shape in shapes), strict=True)
        shape = [sizes[0] if len(set(sizes)) == 1 else -1 for sizes in columns]
    return {"name": same[0].name, "datatype": _NAMES[same[0].dtype], "shape": shape}
