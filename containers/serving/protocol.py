"""The open inference protocol, version 2, over HTTP: bytes to arrays and back.

A request is JSON, or JSON followed by the raw little-endian bytes of the tensors that say
`binary_data_size`, in order; the header `Inference-Header-Content-Length` tells where the JSON ends.
Nothing a client sends is converted in silence: a fraction for an integer or a number that the type
cannot hold is an error that names the tensor.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from collage.errors import InputError
from collage.runtime.manifest import Signature, Tensor

HEADER_LENGTH = "Inference-Header-Content-Length"
DATATYPES = {
    "BOOL": "bool", "UINT8": "uint8", "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64",
    "INT8": "int8", "INT16": "int16", "INT32": "int32", "INT64": "int64", "FP16": "float16",
    "FP32": "float32", "FP64": "float64",
}  # fmt: skip
_NAMES = {numpy_name: name for name, numpy_name in DATATYPES.items()}
_TAKEN = {"b": "b", "i": "iu", "u": "iu", "f": "iuf"}
"""Kinds of JSON values that a kind of tensor takes."""


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


def parse_request(
    body: bytes, header_length: str | None, signatures: Sequence[Signature]
) -> Request:
    """Parse the body of an inference request. Raises InputError that says what is wrong."""
    text, rest = _split(body, header_length)
    try:
        raw = json.loads(text)
        parameters = raw.get("parameters", {})
        entries = raw["inputs"]
        inputs: dict[str, np.ndarray] = {}
        for entry in entries:
            name = entry["name"]
            if name in inputs:
                raise InputError(f"the input {name!r} is given twice")
            inputs[name], rest = _tensor(entry, rest)
        outputs = {
            one["name"]: bool(one.get("parameters", {}).get("binary_data", _all(parameters)))
            for one in raw.get("outputs", ())
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"the request is no inference request: {_said(error)}") from error
    if rest:
        raise InputError(f"{len(rest)} bytes follow the tensors that the request describes")
    known = {tensor.name for one in signatures for tensor in one.outputs}
    if unknown := sorted(set(outputs) - known):
        raise InputError(f"unknown output {unknown[0]!r}; there is {', '.join(sorted(known))}")
    return Request(str(raw.get("id", "")), inputs, outputs, _all(parameters))


def render_answer(
    model: str, version: str, request: Request, outputs: Mapping[str, np.ndarray]
) -> Answer:
    """Return the body for the outputs that the request asked for. Raises InputError for NaN in JSON."""
    wanted = request.outputs or dict.fromkeys(outputs, request.binary)
    entries, chunks = [], []
    for name, binary in wanted.items():
        value = outputs[name]
        entry: dict[str, Any] = {
            "name": name, "datatype": _NAMES[value.dtype.name], "shape": list(value.shape),
        }  # fmt: skip
        if binary:
            chunks.append(np.ascontiguousarray(value).tobytes())
            entry["parameters"] = {"binary_data_size": len(chunks[-1])}
        else:
            entry["data"] = _json_data(name, value)
        entries.append(entry)
    raw: dict[str, Any] = {"model_name": model, "model_version": version, "outputs": entries}
    if request.id:
        raw["id"] = request.id
    text = json.dumps(raw, allow_nan=False).encode()
    return Answer(b"".join([text, *chunks]), len(text) if chunks else None)


def model_metadata(model: str, version: str, signatures: Sequence[Signature]) -> dict[str, Any]:
    """Describe the model; a dimension in which its shape sets differ is -1."""
    sides = ([one.inputs for one in signatures], [one.outputs for one in signatures])
    inputs, outputs = ([_merged(same) for same in zip(*side, strict=True)] for side in sides)
    return {
        "name": model, "versions": [version], "platform": "collage", "inputs": inputs,
        "outputs": outputs,
    }  # fmt: skip


def _split(body: bytes, header_length: str | None) -> tuple[bytes, bytes]:
    if header_length is None:
        return body, b""
    if not header_length.isdecimal() or int(header_length) > len(body):
        raise InputError(f"{HEADER_LENGTH}: {header_length} is no length within the body")
    return body[: int(header_length)], body[int(header_length) :]


def _tensor(entry: dict[str, Any], rest: bytes) -> tuple[np.ndarray, bytes]:
    name, shape = entry["name"], entry["shape"]
    datatype = DATATYPES.get(entry["datatype"])
    if datatype is None:
        known = ", ".join(DATATYPES)
        raise InputError(f"input {name!r} has the datatype {entry['datatype']!r}; known: {known}")
    if not all(isinstance(size, int) and size >= 0 for size in shape):
        raise InputError(f"input {name!r}: the shape {shape} is no list of sizes")
    size = entry.get("parameters", {}).get("binary_data_size")
    if size is None:
        return _from_json(name, entry["data"], np.dtype(datatype), tuple(shape)), rest
    expected = prod(shape) * np.dtype(datatype).itemsize
    if size != expected or size > len(rest):
        raise InputError(
            f"input {name!r}: {datatype}{shape} has {expected} bytes; binary_data_size says {size} and "
            f"{len(rest)} bytes are left"
        )
    flat = np.frombuffer(rest, np.dtype(datatype).newbyteorder("<"), prod(shape))
    return flat.reshape(shape), rest[size:]


def _from_json(name: str, data: object, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    try:
        given = np.asarray(data)
    except ValueError:
        raise InputError(f"input {name!r}: the data is no regular array") from None
    if given.size != prod(shape):
        raise InputError(
            f"input {name!r}: the shape {list(shape)} has {prod(shape)} values, not {given.size}"
        )
    if given.size and given.dtype.kind not in _TAKEN[dtype.kind]:
        raise InputError(f"input {name!r}: the data is not {dtype.name}")
    with np.errstate(over="ignore", invalid="ignore"):
        made = given.astype(dtype)
    held = np.isfinite(made).all() if dtype.kind == "f" else (made == given).all()
    if not held:
        raise InputError(f"input {name!r}: {dtype.name} cannot hold all of the data")
    return made.reshape(shape)


def _json_data(name: str, value: np.ndarray) -> list:
    if value.dtype.kind == "f" and not np.isfinite(value).all():
        raise InputError(
            f"output {name!r} holds NaN or infinity, which JSON cannot say; ask for it with the "
            "parameter binary_data"
        )
    return value.ravel().tolist()


def _merged(same: Sequence[Tensor]) -> dict[str, Any]:
    shapes = [tensor.shape for tensor in same]
    first = shapes[0]
    if first is None or any(one is None or len(one) != len(first) for one in shapes):
        shape = [-1]
    else:
        columns = zip(*(one or () for one in shapes), strict=True)
        shape = [sizes[0] if len(set(sizes)) == 1 else -1 for sizes in columns]
    return {"name": same[0].name, "datatype": _NAMES[same[0].dtype], "shape": shape}


def _all(parameters: dict[str, Any]) -> bool:
    return bool(parameters.get("binary_data_output", False))


def _said(error: Exception) -> str:
    return f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
