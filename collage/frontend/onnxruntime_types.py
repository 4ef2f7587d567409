"""Types in ONNX Runtime's words, e.g. `seq(map(string,tensor(float)))`, as ONNX's own messages."""

import re

import onnx
from onnx import helper

from collage.errors import ModelError

_TYPE = re.compile(r"(tensor|seq|optional|map)\((.*)\)")


def runtime_type(text: str) -> onnx.TypeProto:
    """Parse the type of an input or output of a session; shapes stay open.

    Raises:
        ModelError: a type of another kind (sparse or opaque), or elements that this version of ONNX lacks.

    >>> runtime_type("seq(tensor(double))").sequence_type.elem_type.tensor_type.elem_type
    11
    """
    match = _TYPE.fullmatch(text)
    if not match:
        raise ModelError(
            f"a value is a {text[:60]}; export the model with tensors, sequences or maps"
        )
    kind, inner = match.groups()
    if kind == "tensor":
        return helper.make_tensor_type_proto(_element(inner), None)
    if kind == "seq":
        return helper.make_sequence_type_proto(runtime_type(inner))
    if kind == "optional":
        return helper.make_optional_type_proto(runtime_type(inner))
    key, _, value = inner.partition(",")
    return helper.make_map_type_proto(_element(key), runtime_type(value))


def _element(name: str) -> int:
    try:
        return int(onnx.TensorProto.DataType.Value(name.upper()))
    except ValueError:
        raise ModelError(f"this version of ONNX has no elements of the type {name[:60]}") from None
