"""From an ONNX file to functions: load, bind shapes, fold, infer types, find operator kinds."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx

from collage.errors import DimensionError, InputError, ModelError
from collage.frontend.bodies import (
    MAX_BODIES,
    BodyFile,
    BodyRefusal,
    extract_bodies,
    strip_passed_on,
)
from collage.frontend.decided_branches import decide_branches
from collage.frontend.float16 import float_types, half_type, retyped
from collage.frontend.fold import fold, save_model
from collage.frontend.infer import infer_types
from collage.frontend.load import bind_shapes, named_dims, read_model
from collage.frontend.load_function import KINDS, make_function
from collage.frontend.model import Body, Function, Model
from collage.frontend.onnx_proto import tensor_type
from collage.frontend.tidy import drop_equal_casts, tidy
from collage.graph.op_pattern import OpPatternKind
from collage.runtime.function_names import MAIN, function_name

ShapeSet = Mapping[str, tuple[int, ...]]
_NO_TYPE = onnx.TypeProto()


@dataclass(frozen=True)
class Simplified:
    """The simplified files of a model.

    Attributes:
        sha256: digest of the model's original files.
        float_types: names of the float types of the original model.
        functions: name and simplified file of each function.
        notes: notes of the import for the report, e.g. constants without folding.
        bodies: bodies of control flow, in files of their own.
        absent_dims: optional dimensions that the model lacks.
    """

    sha256: str
    float_types: frozenset[str]
    functions: tuple[tuple[str, Path], ...]
    notes: tuple[str, ...]
    bodies: tuple[BodyFile, ...] = ()
    absent_dims: frozenset[str] = frozenset()


def import_model(
    path: Path,
    *,
    dims: Mapping[str, int] = {},
    shapes: Sequence[ShapeSet] = (),
    work_dir: Path,
    keep_half: bool = False,
    entry: str = MAIN,
    optional_dims: Collection[str] = (),
    taken_defaults: Collection[str] = (),
) -> Model:
    """Import an ONNX model as functions `main`, `main_1`, ..., one per shape set of the entry.

    The import runs in this process, without limits of memory and time. For an untrusted model use
    `frontend.isolated_import.guarded_import`.

    Args:
        path: ONNX file, with external data beside it.
        dims: values of named dynamic dimensions, for all shape sets.
        shapes: input shapes by input name, one mapping per shape set; default: one set from `dims`.
        work_dir: folder for the simplified file of each function; created if missing.
        keep_half: keep the type of a float16 or bfloat16 model, for a GPU (`frontend.float16`).
        entry: name of the model's entry in its bundle.
        optional_dims: names in `dims` that the model may lack.
        taken_defaults: names of inputs with a default that the functions take; default none.

    Raises:
        ModelError: the file cannot be used.
        DimensionError: a dimension is unbound, unknown or contradictory.

    Example:
        >>> model = import_model(Path("det.onnx"), shapes=[{"x": (1, 3, 480, 480)}], work_dir=tmp)
        >>> model.functions[0].graph.outputs
    """
    path = Path(path)
    simplified = simplify_model(
        path,
        dims=dims,
        shapes=shapes,
        work_dir=work_dir,
        keep_half=keep_half,
        entry=entry,
        optional_dims=optional_dims,
        taken_defaults=taken_defaults,
    )
    return finish_import(path, simplified, entry)


def simplify_model(
    path: Path,
    *,
    dims: Mapping[str, int],
    shapes: Sequence[ShapeSet],
    work_dir: Path,
    keep_half: bool,
    entry: str,
    optional_dims: Collection[str],
    taken_defaults: Collection[str],
) -> Simplified:
    """Write each function of the model, simplified and with all types, to its own file.

    The arguments and errors are those of `import_model`.
    """
    work_dir.mkdir(parents=True, exist_ok=True)
    source, digest = read_model(path, taken_defaults)
    floats = float_types(source)
    absent = frozenset(optional_dims) - named_dims(source)
    dims = {name: size for name, size in dims.items() if name not in absent}
    functions = []
    notes: dict[str, None] = {}
    writer = _FunctionWriter(work_dir, keep_half)
    for number, shape in enumerate(shapes or [{}]):
        model = source
        if len(shapes) > 1:
            model = onnx.ModelProto()
            model.CopyFrom(source)
        name = function_name(number, entry)
        try:
            advice = "" if entry == MAIN else f"{entry}/"
            notes.update(dict.fromkeys(bind_shapes(model, dims, shape, advice)))
            notes.update(dict.fromkeys(writer.write(model, name)))
        except InputError as error:
            text = f"{path}: {error}"
            if isinstance(error, DimensionError):
                raise DimensionError(text, error.missing) from error
            raise type(error)(text) from error
        functions.append((name, simplified_file(work_dir, name)))
    return Simplified(
        digest,
        floats,
        tuple(functions),
        tuple(notes),
        bodies=tuple(writer.bodies),
        absent_dims=absent,
    )


def finish_import(path: Path, simplified: Simplified, entry: str = MAIN) -> Model:
    """Make a model of the simplified files; add the operator kinds to them."""
    functions = tuple(
        _with_bodies(name, file, simplified.bodies) for name, file in simplified.functions
    )
    return Model(
        path,
        simplified.sha256,
        functions,
        simplified.float_types,
        notes=simplified.notes,
        entry=entry,
        absent_dims=simplified.absent_dims,
    )


def simplified_file(work_dir: Path, function: str) -> Path:
    """Return the path of a function's simplified file."""
    return work_dir / f"{function}.simplified.onnx"


@dataclass
class _FunctionWriter:
    """Writes simplified functions, and the bodies of their control flow."""

    work_dir: Path
    keep_half: bool
    bodies: list[BodyFile] = field(default_factory=list)
    written_bodies: int = 0

    def write(self, model: onnx.ModelProto, name: str) -> list[str]:
        """Write one function; return notes for the report."""
        self.written_bodies = 0
        model, notes = self._folded(model)
        return notes + self._write_tidy(model, name)

    def _write_body(self, model: onnx.ModelProto, name: str) -> tuple[Path, tuple[str, ...]]:
        names = [value.name for value in model.graph.output]
        self.written_bodies += 1
        if self.written_bodies > MAX_BODIES:
            raise BodyRefusal(f"only {MAX_BODIES} bodies of a function are functions of their own")
        model, _ = self._folded(model)
        results = strip_passed_on(model, names)
        self._write_tidy(model, name)
        return simplified_file(self.work_dir, name), results

    def _folded(self, model: onnx.ModelProto) -> tuple[onnx.ModelProto, list[str]]:
        folded = _folded if self.keep_half else fold
        try:
            model, note = folded(model, self.work_dir)
        except ModelError:
            if not decide_branches(model):
                raise
            model, note = folded(model, self.work_dir)
        tidy(model)
        return model, [note] if note else []

    def _write_tidy(self, model: onnx.ModelProto, name: str) -> list[str]:
        types = infer_types(model, self.work_dir)
        drop_equal_casts(model, types)
        notes = self._extract_bodies(model, types, name)
        _require_tensors(model, types)
        notes += write_types(model, types)
        del model.metadata_props[:]
        save_model(model, simplified_file(self.work_dir, name))
        return notes

    def _extract_bodies(
        self, model: onnx.ModelProto, types: dict[str, onnx.TypeProto], name: str
    ) -> list[str]:
        """Write the bodies and refine the types; return a note for each node that stays whole."""
        notes: dict[str, None] = {}
        for files, output_types in extract_bodies(model, types, name, self._write_body):
            self.bodies += files
            node = model.graph.node[files[0].node]
            if files[0].refusal:
                notes[f"{node.name} ({node.op_type}) stays whole: {files[0].refusal}"] = None
            is_open = [tensor_type(types.get(value, _NO_TYPE)) is None for value in output_types]
            types.update(output_types)
            if any(is_open):
                types.update(infer_types(model, self.work_dir, types))
        return list(notes)


def _with_bodies(name: str, file: Path, files: Sequence[BodyFile]) -> Function:
    """Load a simplified function with its bodies."""
    function = _with_kinds(name, file)
    bodies = [
        Body(body.node, body.attribute, _with_bodies(body.name, body.file, files), body.results)
        for body in files
        if body.caller == name and body.file is not None
    ]
    return replace(function, bodies=tuple(bodies))


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
    for name in outputs.keys() & types.keys():
        outputs[name].type.CopyFrom(types[name])
    open_values = []
    for node in graph.node:
        for name in filter(None, node.output):
            value_type = types.get(name)
            if value_type is None or tensor_type(value_type) is None:
                open_values.append(f"{name} ({node.op_type})")
            if value_type is not None and name not in outputs:
                graph.value_info.append(onnx.helper.make_value_info(name, value_type))
    if not open_values:
        return []
    shown = ", ".join(open_values[:3]) + (", ..." if len(open_values) > 3 else "")
    return [
        f"{len(open_values)} values have no shape that is known before the model runs: {shown};"
        " the operators that make and read them run together, in one kernel"
    ]
