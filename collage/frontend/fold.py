"""Fold what does not depend on the inputs, and leave a graph of plain operator calls.

ONNX Runtime's offline basic optimiser folds constants, batch norms and shape chains and stays in the
standard operator set. Two things about it need care: it turns `MatMul + Add` of any rank into
`Reshape + Gemm + Reshape`, which hides the matrix product from every other toolchain (switched off
here), and a few graphs that it wrote could not be loaded by ONNX Runtime itself, so the result is
loaded once more and the unfolded model is the fall-back.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
import onnxruntime

from collage.errors import ModelError
from collage.frontend.onnx_proto import STANDARD_DOMAINS, nodes_within, op_name, reads, sub_graphs

_HARMFUL = ["MatMulAddFusion"]
_LARGE_BYTES = 1 << 30
"""Above this a model is written with external data (a protobuf ends at 2 GiB)."""

_NO_MEMORY = ("bad_alloc", "bad allocation", "Failed to allocate memory", "length_error")
_DEFAULT_OPSET = 17
_PREFIX = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : (Load model from .*? failed:)?")
_PLACE = re.compile(r"/\S+\.(cc|h|cpp|hpp):\d+ [^()]*\(")
"""Of a fault in ONNX Runtime's sources: file and line, and the signature up to its arguments."""
_OPTIONAL_OUTPUTS = {
    "Dropout": 1, "MaxPool": 1, "LayerNormalization": 1, "BatchNormalization": 1,
}  # fmt: skip


def session(model: Path | bytes, level: str = "ORT_DISABLE_ALL") -> onnxruntime.InferenceSession:
    """Open a quiet single-threaded CPU session."""
    options = session_options(level)
    source = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def session_options(level: str) -> onnxruntime.SessionOptions:
    """Return options of a quiet single-threaded session."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return options


def fold(model: onnx.ModelProto, work_dir: Path) -> tuple[onnx.ModelProto, str]:
    """Return the folded model, and a note: "" or why it could not be folded."""
    with TemporaryDirectory(dir=work_dir) as folder:
        bound, folded = Path(folder) / "bound.onnx", Path(folder) / "folded.onnx"
        save_model(model, bound)
        reason = _optimise(bound, folded, large=_weight_bytes(model) > _LARGE_BYTES)
        result = model if reason else onnx.load(folded)
    added = _foreign_ops(result) - _foreign_ops(model)
    if added:
        reason = f"the optimiser brought in {', '.join(sorted(added))}"
    return (model, f"constants were not folded: {reason}") if reason else (result, "")


def _optimise(source: Path, target: Path, large: bool) -> str:
    options = session_options("ORT_ENABLE_BASIC")
    options.optimized_model_filepath = str(target)
    if large:
        options.add_session_config_entry(
            "session.optimized_model_external_initializers_file_name", target.name + ".data"
        )
        options.add_session_config_entry(
            "session.optimized_model_external_initializers_min_size_in_bytes", "1024"
        )
    try:
        onnxruntime.InferenceSession(
            str(source), options, providers=["CPUExecutionProvider"], disabled_optimizers=_HARMFUL
        )
    except Exception as error:  # ONNX Runtime's share no base class
        if is_out_of_memory(error):
            raise MemoryError(first_line(error)) from error
        _require_loadable(source, error)
        return first_line(error)
    try:
        session(target)
    except Exception as error:  # of any kind: the model is used as it was
        return first_line(error)
    return ""


def _require_loadable(source: Path, error: Exception) -> None:
    try:
        session(source)
    except Exception:  # which one does not matter: the first error is told
        raise ModelError(
            f"ONNX Runtime does not load the model with these shapes: {told_reason(error)}"
        ) from error


def is_out_of_memory(error: Exception) -> bool:
    """Tell whether ONNX Runtime, which has no class for it, found no memory."""
    return any(words in str(error) for words in _NO_MEMORY)


def first_line(error: Exception) -> str:
    """Return what an error says, without its stack of causes."""
    return str(error).strip().split("\n", 1)[0]


def told_reason(error: Exception) -> str:
    """Return why ONNX Runtime refuses a model: without error codes, files, and places in its sources.

    >>> told_reason(Exception("[ONNXRuntimeError] : 1 : FAIL : Load model from m.onnx failed:/s/m.cc:2 "
    ...                       "void ort::Model::f(int, g<a()>) Unsupported model IR version: 14"))
    'Unsupported model IR version: 14'
    """
    text = _PREFIX.sub("", first_line(error))
    if not (place := _PLACE.match(text)):
        return text
    depth, start = 1, place.end()
    while depth and start < len(text):
        depth += {"(": 1, ")": -1}.get(text[start], 0)
        start += 1
    return text[start:].removeprefix(" const").strip() or text


def save_model(model: onnx.ModelProto, path: Path) -> None:
    """Write `model`, with external data beside it when it is large."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if _weight_bytes(model) <= _LARGE_BYTES:
        onnx.save(model, path)
        return
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    (path.parent / (path.name + ".data")).unlink(missing_ok=True)
    onnx.save(copy, path, save_as_external_data=True, location=path.name + ".data")


def _weight_bytes(model: onnx.ModelProto) -> int:
    return sum(len(tensor.raw_data) for tensor in model.graph.initializer)


def _foreign_ops(model: onnx.ModelProto) -> set[str]:
    return {
        op_name(inner)
        for node in model.graph.node
        for inner in nodes_within(node)
        if inner.domain not in STANDARD_DOMAINS
    }


def tidy(model: onnx.ModelProto) -> None:
    """Leave nodes that compute, sorted, uniquely named; each output made by a node of its own."""
    graph = model.graph
    nodes = _drop_dead(list(graph.node), [value.name for value in graph.output])
    nodes = _constants_to_weights(graph, nodes)
    nodes = _drop_identities(graph, nodes)
    nodes += _outputs_of_their_own(graph, nodes)
    nodes = _sorted(nodes)
    nodes = _drop_dead(nodes, [value.name for value in graph.output])
    _drop_optional_outputs(nodes, {value.name for value in graph.output})
    _name_uniquely(nodes)
    del graph.node[:]
    graph.node.extend(nodes)
    used = {name for node in nodes for name in reads(node)}
    weights = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.initializer[:]
    graph.initializer.extend(weights)
    del graph.value_info[:]
    _used_opsets(model)


def _drop_dead(nodes: list[onnx.NodeProto], outputs: Iterable[str]) -> list[onnx.NodeProto]:
    live = set(outputs)
    kept = []
    for node in reversed(_sorted(nodes)):
        if live.intersection(node.output):
            live.update(reads(node))
            kept.append(node)
    return kept[::-1]


def _constants_to_weights(
    graph: onnx.GraphProto, nodes: list[onnx.NodeProto]
) -> list[onnx.NodeProto]:
    kept = []
    for node in nodes:
        value = _constant_value(node)
        if value is None:
            kept.append(node)
        else:
            value.name = node.output[0]
            graph.initializer.append(value)
    return kept


def _constant_value(node: onnx.NodeProto) -> onnx.TensorProto | None:
    if node.op_type != "Constant" or node.domain not in STANDARD_DOMAINS:
        return None
    attribute = node.attribute[0]
    if attribute.name == "value":
        value = onnx.TensorProto()
        value.CopyFrom(attribute.t)
        return value
    integers, floats = onnx.TensorProto.INT64, onnx.TensorProto.FLOAT
    if attribute.name == "value_int":
        return onnx.helper.make_tensor("", integers, [], [attribute.i])
    if attribute.name == "value_float":
        return onnx.helper.make_tensor("", floats, [], [attribute.f])
    if attribute.name == "value_ints":
        return onnx.helper.make_tensor("", integers, [len(attribute.ints)], attribute.ints)
    if attribute.name == "value_floats":
        return onnx.helper.make_tensor("", floats, [len(attribute.floats)], attribute.floats)
    return None


def _drop_identities(graph: onnx.GraphProto, nodes: list[onnx.NodeProto]) -> list[onnx.NodeProto]:
    outputs = {value.name for value in graph.output}
    renamed: dict[str, str] = {}
    kept = []
    for node in nodes:
        if node.op_type == "Identity" and node.domain in STANDARD_DOMAINS:
            source = renamed.get(node.input[0], node.input[0])
            if node.output[0] not in outputs:
                renamed[node.output[0]] = source
                continue
        kept.append(node)
    for node in kept:
        _rename(node, renamed)
    return _merge_output_identities(kept, outputs)


def _merge_output_identities(
    nodes: list[onnx.NodeProto], outputs: set[str]
) -> list[onnx.NodeProto]:
    """Let a node write an output itself when an Identity only gives it the output's name."""
    producer = {name: node for node in nodes for name in node.output}
    renamed: dict[str, str] = {}
    kept = []
    for node in nodes:
        if node.op_type == "Identity" and node.domain in STANDARD_DOMAINS:
            source = node.input[0]
            if source in producer and source not in outputs and source not in renamed:
                renamed[source] = node.output[0]
                continue
        kept.append(node)
    for node in kept:
        _rename(node, renamed)
        for position, name in enumerate(node.output):
            node.output[position] = renamed.get(name, name)
    return kept


def _rename(node: onnx.NodeProto, renamed: dict[str, str]) -> None:
    for position, name in enumerate(node.input):
        node.input[position] = renamed.get(name, name)
    for graph in sub_graphs(node):
        own = {value.name for value in graph.input} | {item.name for item in graph.initializer}
        own.update(name for inner in graph.node for name in inner.output)
        outer = {old: new for old, new in renamed.items() if old not in own}
        for inner in graph.node:
            _rename(inner, outer)
        for value in graph.output:
            value.name = outer.get(value.name, value.name)


def _outputs_of_their_own(
    graph: onnx.GraphProto, nodes: list[onnx.NodeProto]
) -> list[onnx.NodeProto]:
    """Make Identity nodes for outputs that are an input, a weight, or another output."""
    made = {name for node in nodes for name in node.output}
    taken: set[str] = set()
    added: list[onnx.NodeProto] = []
    for value in graph.output:
        if value.name in made and value.name not in taken:
            taken.add(value.name)
            continue
        source = value.name
        value.name = f"{source}_output_{len(added)}"
        added.append(onnx.helper.make_node("Identity", [source], [value.name]))
    return added


def _sorted(nodes: list[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Sort topologically; nodes that are already in order stay where they are."""
    pending = {name for node in nodes for name in node.output if name}
    ordered: list[onnx.NodeProto] = []
    rest = list(nodes)
    while rest:
        later = []
        for node in rest:
            if pending.intersection(reads(node)):
                later.append(node)
            else:
                ordered.append(node)
                pending.difference_update(node.output)
        if len(later) == len(rest):
            raise ModelError("the model's nodes form a cycle; export it again")
        rest = later
    return ordered


def _drop_optional_outputs(nodes: list[onnx.NodeProto], outputs: set[str]) -> None:
    used = outputs.union(*(reads(node) for node in nodes)) if nodes else outputs
    for node in nodes:
        least = _OPTIONAL_OUTPUTS.get(node.op_type)
        while least and len(node.output) > least and node.output[-1] not in used:
            del node.output[-1]


def _name_uniquely(nodes: list[onnx.NodeProto]) -> None:
    taken: set[str] = set()
    for index, node in enumerate(nodes):
        if not node.name or node.name in taken:
            node.name = f"{node.op_type}_{index}"
        while node.name in taken:
            node.name += "_"
        taken.add(node.name)


def _used_opsets(model: onnx.ModelProto) -> None:
    versions = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in model.opset_import}
    used = {
        "" if inner.domain == "ai.onnx" else inner.domain
        for node in model.graph.node
        for inner in nodes_within(node)
    }
    del model.opset_import[:]
    for domain in sorted(used | {""}):
        model.opset_import.append(
            onnx.helper.make_opsetid(domain, versions.get(domain, 1 if domain else _DEFAULT_OPSET))
        )
