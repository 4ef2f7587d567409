"""From an ONNX file to functions: load, bind shapes, fold, infer types, find operator kinds."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from collage.errors import InputError, ModelError
from collage.frontend.float16 import float_types, half_type, retyped
from collage.frontend.fold import fold, save_model
from collage.frontend.infer import infer_types
from collage.frontend.load import bind_shapes, read_model
from collage.frontend.load_function import KINDS, make_function
from collage.frontend.model import Function, Model
from collage.frontend.onnx_proto import tensor_type
from collage.frontend.tidy import tidy
from collage.graph.op_pattern import OpPatternKind
from collage.runtime.function_names import function_name

ShapeSet = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Simplified:
    """The simplified files of a model.

    Attributes:
        sha256: digest of the model's original files.
        float_types: names of the float types of the original model.
        functions: name and simplified file of each function.
        notes: notes of the import for the report, e.g. constants without folding.
    """

    sha256: str
    float_types: frozenset[str]
    functions: tuple[tuple[str, Path], ...]
    notes: tuple[str, ...]


def import_model(
    path: Path,
    *,
    dims: Mapping[str, int] = {},
    shapes: Sequence[ShapeSet] = (),
    work_dir: Path,
    keep_half: bool = False,
) -> Model:
    """Import an ONNX model as functions `main`, `main_1`, ..., one per shape set.

    The import runs in this process, without limits of memory and time. For an untrusted model use
    `frontend.isolated_import.guarded_import`.

    Args:
        path: ONNX file, with external data beside it.
        dims: values of named dynamic dimensions, for all shape sets.
        shapes: input shapes by input name, one mapping per shape set; default: one set from `dims`.
        work_dir: folder for the simplified file of each function; created if missing.
        keep_half: keep the type of a float16 or bfloat16 model, for a GPU (`frontend.float16`).

    Raises:
        ModelError: the file cannot be used.
        DimensionError: a dimension is unbound, unknown or contradictory.

    Example:
        >>> model = import_model(Path("det.onnx"), shapes=[{"x": (1, 3, 480, 480)}], work_dir=tmp)
        >>> model.functions[0].graph.outputs
    """
    path = Path(path)
    simplified = simplify_model(
        path, dims=dims, shapes=shapes, work_dir=work_dir, keep_half=keep_half
    )
    return finish_import(path, simplified)


def simplify_model(
    path: Path,
    *,
    dims: Mapping[str, int],
    shapes: Sequence[ShapeSet],
    work_dir: Path,
    keep_half: bool,
) -> Simplified:
    """Write each function of the model, simplified and with all types, to its own file.

    The arguments and errors are those of `import_model`.
    """
    work_dir.mkdir(parents=True, exist_ok=True)
    source, digest = read_model(path)
    floats = float_types(source)
    functions = []
    notes: dict[str, None] = {}
    for number, shape in enumerate(shapes or [{}]):
        model = source
        if len(shapes) > 1:
            model = onnx.ModelProto()
            model.CopyFrom(source)
        name = function_name(number)
        file = work_dir / f"{name}.simplified.onnx"
        try:
            bind_shapes(model, dims, shape)
            notes.update(dict.fromkeys(_simplify(model, file, work_dir, keep_half)))
        except InputError as error:
            raise type(error)(f"{path}: {error}") from error
        functions.append((name, file))
    return Simplified(digest, floats, tuple(functions), tuple(notes))


def finish_import(path: Path, simplified: Simplified) -> Model:
    """Make a model of the simplified files; add the operator kinds to them."""
    functions = tuple(_with_kinds(name, file) for name, file in simplified.functions)
    return Model(path, simplified.sha256, functions, simplified.float_types, notes=simplified.notes)


def _simplify(model: onnx.ModelProto, file: Path, work_dir: Path, keep_half: bool) -> list[str]:
    model, note = _folded(model, work_dir) if keep_half else fold(model, work_dir)
    notes = [note] if note else []
    tidy(model)
    types = infer_types(model, work_dir)
    _require_tensors(model, types)
    notes += write_types(model, types)
    del model.metadata_props[:]
    save_model(model, file)
    return notes


def _with_kinds(name: str, file: Path) -> Function:
    """Load a simplified function, find its operator kinds, and add them to its file.

    A parser merges bytes after a protobuf into it, so the kinds are appended to the file.
    """
    model = onnx.load(file)
    unknown = [OpPatternKind.OPAQUE] * len(model.graph.node)
    kinds = _kinds(make_function(model, name, file, unknown))
    addition = onnx.ModelProto()
    addition.metadata_props.add(key=KINDS, value=json.dumps([int(kind) for kind in kinds]))
    with file.open("ab") as stream:
        stream.write(addition.SerializeToString())
    return make_function(model, name, file, kinds)


def _folded(model: onnx.ModelProto, work_dir: Path) -> tuple[onnx.ModelProto, str]:
    """Fold a model and keep its 16-bit floats."""
    kind = half_type(model)
    if not kind:
        return fold(model, work_dir)
    wide, note = fold(retyped(model, kind, onnx.TensorProto.FLOAT), work_dir)
    return retyped(wide, onnx.TensorProto.FLOAT, kind), note


def _kinds(function: Function) -> list[OpPatternKind]:
    from collage.frontend.operator_kinds import node_kinds

    return node_kinds(function.relax_nodes)


def _require_tensors(model: onnx.ModelProto, types: Mapping[str, onnx.TypeProto]) -> None:
    for value in model.graph.output:
        output_type = types.get(value.name, onnx.TypeProto())
        kind = output_type.WhichOneof("value")
        if kind not in (None, "tensor_type"):
            raise ModelError(
                f"output {value.name} is a {(kind or '').removesuffix('_type')} and no tensor;"
                " cut the last operators off (a ZipMap of scikit-learn: export with zipmap=False)"
            )
        if output_type.tensor_type.elem_type == onnx.TensorProto.STRING:
            raise ModelError(
                f"output {value.name} holds strings, which no executable returns; return the indices"
                " instead and look the strings up outside of the model"
            )


def write_types(model: onnx.ModelProto, types: Mapping[str, onnx.TypeProto]) -> list[str]:
    """Write the types into the model; return notes about values without a static shape."""
    graph = model.graph
    outputs = {value.name: value for value in graph.output}
    open_values = []
    for node in graph.node:
        for name in filter(None, node.output):
            value_type = types.get(name)
            if value_type is None or tensor_type(value_type) is None:
                open_values.append(f"{name} ({node.op_type})")
            if value_type is not None and name in outputs:
                outputs[name].type.CopyFrom(value_type)
            elif value_type is not None:
                graph.value_info.append(onnx.helper.make_value_info(name, value_type))
    if not open_values:
        return []
    shown = ", ".join(open_values[:3]) + (", ..." if len(open_values) > 3 else "")
    return [
        f"{len(open_values)} values have no shape that is known before the model runs: {shown};"
        " the operators that make and read them run together, in one kernel"
    ]
