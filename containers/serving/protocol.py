"""The open inference protocol, version 2, over HTTP: bytes to arrays and back.

A request is JSON, or JSON followed by the raw little-endian bytes of the tensors that say
`binary_data_size`, in order; the header `Inference-Header-Content-Length` tells where the JSON ends.
Every part has one type, which is checked before the part is used; what is wrong is said by name.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from collage.errors import InputError
from collage.runtime.manifest import Signature, Tensor
from containers.serving.bounded_json import JsonLimits, parse_json
from containers.serving.tensors import DATATYPES, checked_shape, from_bytes, from_json, shown

HEADER_LENGTH = "Inference-Header-Content-Length"
MAX_ID = 1024
_NAMES = {numpy_name: name for name, numpy_name in DATATYPES.items()}
Object = dict[str, Any]


@dataclass(frozen=True)
class Request:
    """Inputs by name, and which outputs (name to whether in binary); empty: all, as `binary` says."""

    id: str
    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, bool]
    binary: bool


@dataclass(frozen=True)
class Answer:
    """A body, and the length of its JSON where bytes of tensors follow."""

    body: bytes
    header_length: int | None


def json_length(header_length: str | None, body_bytes: int) -> int:
    """Return how many bytes of a body are JSON. Raises InputError for no length within the body."""
    if header_length is None:
        return body_bytes
    text = header_length.strip()
    if not text.isascii() or not text.isdecimal() or len(text) > 15 or int(text) > body_bytes:
        raise InputError(f"{HEADER_LENGTH}: {shown(text)} is no length within the body")
    return int(text)


def parse_request(
    body: bytearray, header_length: str | None, signatures: Sequence[Signature], limits: JsonLimits
) -> Request:
    """Parse the body of an inference request. Raises InputError that says what is wrong."""
    end = json_length(header_length, len(body))
    raw = _of(dict, parse_json(body if end == len(body) else body[:end], limits), "the request")
    binary = _flag(_parameters(raw, "the request"), "binary_data_output", False)
    inputs, rest = _inputs(raw, memoryview(body)[end:], [one.name for one in signatures[0].inputs])
    if rest:
        raise InputError(f"{len(rest)} bytes follow the tensors that the request describes")
    outputs = {}
    for entry in _entries(raw, "outputs", optional=True):
        name = _name(entry, "an output")
        outputs[name] = _flag(_parameters(entry, f"output {shown(name)}"), "binary_data", binary)
    known = {tensor.name for one in signatures for tensor in one.outputs}
    if unknown := sorted(set(outputs) - known):
        raise InputError(f"unknown output {shown(unknown[0])}; there is {', '.join(sorted(known))}")
    identity = _of(str, raw.get("id", ""), "the id")
    if len(identity) > MAX_ID:
        raise InputError(f"the id has more than {MAX_ID} characters")
    return Request(identity, inputs, outputs, binary)


def render_answer(
    model: str, version: str, request: Request, outputs: Mapping[str, np.ndarray]
) -> Answer:
    """Return the body for the outputs that the request asked for. Raises InputError for NaN in JSON."""
    wanted = wanted_outputs(request, outputs)
    entries, chunks = [], []
    for name, binary in wanted.items():
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


def wanted_outputs(request: Request, outputs: Mapping[str, object]) -> Mapping[str, bool]:
    """Return the names that are asked for, and whether each in binary."""
    return request.outputs or dict.fromkeys(outputs, request.binary)


def model_metadata(model: str, version: str, signatures: Sequence[Signature]) -> Object:
    """Describe the model; a dimension in which its shape sets differ is -1."""
    sides = ([one.inputs for one in signatures], [one.outputs for one in signatures])
    inputs, outputs = ([_merged(same) for same in zip(*side, strict=True)] for side in sides)
    return {
        "name": model, "versions": [version], "platform": "collage", "inputs": inputs,
        "outputs": outputs,
    }  # fmt: skip


def _inputs(
    raw: Object, rest: memoryview, known: Sequence[str]
) -> tuple[dict[str, np.ndarray], memoryview]:
    inputs: dict[str, np.ndarray] = {}
    for entry in _entries(raw, "inputs"):
        name = _name(entry, "an input")
        if name in inputs:
            raise InputError(f"the input {name!r} is given twice")
        if name not in known:
            raise InputError(f"unknown input {shown(name)}; expected {', '.join(known)}")
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
            inputs[name] = from_bytes(name, rest, size, dtype, shape)
            rest = rest[inputs[name].nbytes :]
    return inputs, rest


def _entries(raw: Object, key: str, optional: bool = False) -> list[Object]:
    found = raw.get(key, []) if optional else _get(raw, key, "the request")
    entries: list[object] = _of(list, found, repr(key))
    return [_of(dict, entry, f"an entry of {key!r}") for entry in entries]


def _name(entry: Object, what: str) -> str:
    name: str = _of(str, _get(entry, "name", what), f"the name of {what}")
    return name


def _parameters(raw: Object, what: str) -> Object:
    found: Object = _of(dict, raw.get("parameters", {}), f"'parameters' of {what}")
    return found


def _flag(parameters: Object, key: str, default: bool) -> bool:
    return bool(_of(bool, parameters.get(key, default), repr(key)))


def _get(raw: Object, key: str, what: str) -> object:
    if key not in raw:
        raise InputError(f"the request is no inference request: {what}: {key!r} is missing")
    return raw[key]


def _of(kind: type, value: object, what: str) -> Any:
    if type(value) is not kind:
        words = {dict: "an object", list: "a list", str: "a string", bool: "true or false"}
        raise InputError(
            f"the request is no inference request: {what} is {shown(value)}, not {words[kind]}"
        )
    return value


def _json_data(name: str, value: np.ndarray) -> list[Any]:
    if value.dtype.kind == "f" and not np.isfinite(value).all():
        raise InputError(
            f"output {name!r} holds NaN or infinity, which JSON cannot say; ask for it with the "
            "parameter binary_data"
        )
    found: list[Any] = value.ravel().tolist()
    return found


def _merged(same: Sequence[Tensor]) -> Object:
    shapes = [tensor.shape for tensor in same]
    first = shapes[0]
    if first is None or any(one is None or len(one) != len(first) for one in shapes):
        shape = [-1]
    else:
        columns = zip(*(one or () for one in shapes), strict=True)
        shape = [sizes[0] if len(set(sizes)) == 1 else -1 for sizes in columns]
    return {"name": same[0].name, "datatype": _NAMES[same[0].dtype], "shape": shape}
