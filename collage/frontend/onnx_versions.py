"""Models with ONNX versions newer than the installed ONNX Runtime supports.

`onnx.helper.make_model` stamps the newest versions of the `onnx` package: of the IR (the file format) and
of each operator set. ONNX Runtime follows months later and refuses the stamp, regardless of the content.
Most models use nothing new. A stamp is lowered if that changes nothing: an IR version without a new
element type in the model, an operator set with equal schemas of all operators in the older set. Nothing
else is converted. The remaining models are refused, with an error about the operator, or about the
operator set if the installed ONNX does not describe it.

ONNX Runtime does not publish its supported versions, so they are probed once per process.
"""

from collections.abc import Callable, Iterator, Set
from functools import lru_cache
from pathlib import Path

import onnx
import onnxruntime
from google.protobuf.message import DecodeError
from onnx import helper

from collage.errors import ModelError
from collage.frontend.float16 import element_types
from collage.frontend.onnx_proto import STANDARD_DOMAINS, all_nodes

_OLDEST_IR = 10
"""IR version with support in every ONNX Runtime of Collage."""
_OLDEST_OPSETS = {"": 21, "ai.onnx.ml": 4}
"""Operator sets with support in every ONNX Runtime of Collage, by domain."""
_IR_OF_TYPES = {
    "FLOAT4E2M1": 11, "FLOAT8E8M0": 12, "UINT2": 13, "INT2": 13, "FLOAT6E2M3": 14, "FLOAT6E3M2": 14,
}  # fmt: skip
"""First IR version of each element type newer than `_OLDEST_IR` (from onnx.proto)."""


def make_readable(model: onnx.ModelProto) -> bool:
    """Lower unsupported versions of `model` in place, if that changes nothing.

    Returns:
        True if a version was lowered.

    Raises:
        ModelError: the model needs a version without support in the installed ONNX Runtime.
    """
    before = (model.ir_version, _opset_stamps(model))
    if model.ir_version > _OLDEST_IR and model.ir_version > (newest := newest_ir_version()):
        _require_described_ir(model.ir_version, newest)
        _require_types_of(model, newest)
        model.ir_version = newest
    for domain, oldest in _OLDEST_OPSETS.items():
        _lower_opset(model, domain, oldest)
    return before != (model.ir_version, _opset_stamps(model))


def readable_bytes(path: Path) -> bytes | None:
    """Return the file with lowered versions, or None without a lowered version.

    Weights in other files stay there: their names are still relative to the folder of `path`.

    Raises:
        ModelError: as `make_readable`.
    """
    try:
        model = onnx.load(path, load_external_data=False)
    except (DecodeError, ValueError, OSError):  # ONNX Runtime's own error is the better one
        return None
    try:
        lowered = make_readable(model)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error
    return model.SerializeToString() if lowered else None


@lru_cache
def newest_ir_version() -> int:
    """Return the newest supported IR version of the installed ONNX Runtime."""
    return _newest_supported(
        onnx.IR_VERSION, _OLDEST_IR, lambda version: _identity(version, "", 17)
    )


@lru_cache
def newest_opset(domain: str) -> int:
    """Return the newest supported operator set of `domain` ("" or "ai.onnx.ml") of ONNX Runtime."""
    return _newest_supported(
        _newest_described(domain),
        _OLDEST_OPSETS[domain],
        lambda version: _identity(_OLDEST_IR, domain, version),
    )


def _newest_described(domain: str) -> int:
    """Return the newest operator set of `domain` in the installed ONNX."""
    return max(
        int(version) for name, version in helper.OP_SET_ID_VERSION_MAP if name == _named(domain)
    )


def _newest_supported(newest: int, oldest: int, build_model: Callable[[int], bytes]) -> int:
    for version in range(newest, oldest, -1):
        if _is_supported(build_model(version)):
            return version
    return oldest


def _is_supported(model: bytes) -> bool:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception:  # noqa: BLE001 - ONNX Runtime's errors share no base class; the model has one fault at most
        return False
    return True


def _identity(ir_version: int, domain: str, opset: int) -> bytes:
    """Return a model of one Identity with an import of this operator set."""
    value = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy"]
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])], "g", value[:1], value[1:]
    )
    opsets = {"": 17} | {domain: opset}
    model = helper.make_model(
        graph,
        ir_version=ir_version,
        opset_imports=[helper.make_opsetid(*item) for item in opsets.items()],
    )
    return bytes(model.SerializeToString())


def _require_described_ir(stamped: int, newest: int) -> None:
    if stamped > onnx.IR_VERSION:
        raise ModelError(
            f"it is of IR version {stamped}, and what a file may hold is known up to {onnx.IR_VERSION}"
            f" here: export the model with IR version {newest}"
        )


def _require_types_of(model: onnx.ModelProto, newest: int) -> None:
    for name, version in _IR_OF_TYPES.items():
        if version > newest and getattr(onnx.TensorProto, name, None) in set(element_types(model)):
            raise ModelError(
                f"it holds numbers of type {name}, which ONNX has since IR version {version}; the"
                f" installed ONNX Runtime {onnxruntime.__version__} reads up to {newest}: store these"
                " numbers in another type"
            )


def _lower_opset(model: onnx.ModelProto, domain: str, oldest: int) -> None:
    stamps = [stamp for stamp in _opset_stamps_of(model) if _domain(stamp.domain) == domain]
    if max((stamp.version for stamp in stamps), default=0) <= oldest:
        return
    newest = newest_opset(domain)
    too_new = [stamp for stamp in stamps if stamp.version > newest]
    if not too_new:
        return
    stamped = max(stamp.version for stamp in too_new)
    newest_described = _newest_described(domain)
    if stamped > newest_described:
        raise ModelError(
            f"it is of operator set {stamped}{' of ' + domain if domain else ''}, and what operators mean"
            f" is known up to {newest_described} here: export the model with opset {newest}"
        )
    _require_operators_of(model, domain, stamped, newest)
    for stamp in too_new:
        stamp.version = newest


def _require_operators_of(model: onnx.ModelProto, domain: str, stamped: int, newest: int) -> None:
    for node in all_nodes(model):
        if _domain(node.domain) == domain and not _is_same(node, domain, stamped, newest):
            raise ModelError(
                f"node '{node.name or node.output[0]}' is {node.op_type} of operator set {stamped}"
                f"{' of ' + domain if domain else ''}, which older sets do not have so; the installed"
                f" ONNX Runtime {onnxruntime.__version__} reads up to {newest}: export the model with"
                f" opset {newest}"
            )


def _is_same(node: onnx.NodeProto, domain: str, stamped: int, older: int) -> bool:
    """Tell whether the node has the same meaning in an older operator set.

    The older set has the identical operator, or one with an equal description and fewer element types;
    ONNX Runtime refuses the missing types.
    """
    try:
        new = onnx.defs.get_schema(node.op_type, stamped, domain)
    except onnx.defs.SchemaError:
        # An operator of ONNX Runtime in these domains, unknown to ONNX.
        return True
    if new.since_version <= older:
        return True
    try:
        old = onnx.defs.get_schema(node.op_type, older, domain)
    except onnx.defs.SchemaError:
        return False
    used = {attribute.name for attribute in node.attribute}
    return (
        old.doc == new.doc
        and _values(old) == _values(new)
        and _attributes(old, used) == _attributes(new, used)
    )


def _values(schema: onnx.defs.OpSchema) -> list[tuple[str, str, str]]:
    values = [*schema.inputs, *schema.outputs]
    return [(value.name, value.type_str, value.description) for value in values]


def _attributes(schema: onnx.defs.OpSchema, used: Set[str]) -> list[tuple[str, bytes, str]]:
    """Return name, default and, for used attributes, description of every attribute of a schema."""
    return [
        (name, item.default_value.SerializeToString(), item.description if name in used else "")
        for name, item in sorted(schema.attributes.items())
    ]


def _opset_stamps(model: onnx.ModelProto) -> list[int]:
    return [stamp.version for stamp in _opset_stamps_of(model)]


def _opset_stamps_of(model: onnx.ModelProto) -> Iterator[onnx.OperatorSetIdProto]:
    yield from model.opset_import
    for function in model.functions:
        yield from function.opset_import


def _domain(domain: str) -> str:
    return "" if domain in STANDARD_DOMAINS else domain


def _named(domain: str) -> str:
    return domain or "ai.onnx"
