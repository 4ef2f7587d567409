"""`collage inspect`: what a model has and what a compile of it needs, without compiling.

Inputs, outputs and operators are those of the file. Where all dimensions are bound, by the file or by
options, each backend says which nodes it takes and why it refuses the others; otherwise the options that
bind them are listed.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx

from collage.entries import ModelEntry, options_of
from collage.errors import DimensionError
from collage.frontend.model_files import open_model
from collage.frontend.original_interface import OriginalInterface, read_interface
from collage.options import Options
from collage.pipeline.candidate_list import ListedBackend, list_candidates


@dataclass(frozen=True)
class InspectedBackend:
    """What one backend would take of a function.

    Attributes:
        name: name of the backend.
        missing: reason of unavailability on this machine, "" if available.
        function: name of the function.
        nodes: number of nodes of the function.
        taken: number of its nodes in at least one candidate.
        refused: numbers of refused nodes by reason, the most frequent first.
    """

    name: str
    missing: str
    function: str
    nodes: int
    taken: int
    refused: Mapping[str, int]


@dataclass(frozen=True)
class InspectedModel:
    """One entry's model.

    Attributes:
        entry: name of the entry.
        path: file of the model.
        inputs: inputs as text, e.g. "x: float32[?, 3, 480, 480]".
        defaults: names of the inputs that callers may leave out.
        outputs: outputs as text.
        operators: numbers of nodes by operator, the most frequent first; bodies count too.
        open_dimensions: options that bind the open dimensions of the inputs.
        backends: what each backend takes; empty where dimensions are open or `obstacle` says why not.
        obstacle: why no backend was asked; "" where each was.
    """

    entry: str
    path: str
    inputs: tuple[str, ...]
    defaults: tuple[str, ...]
    outputs: tuple[str, ...]
    operators: Mapping[str, int]
    open_dimensions: tuple[str, ...]
    backends: tuple[InspectedBackend, ...] = ()
    obstacle: str = ""


def inspect_models(entries: Sequence[ModelEntry], options: Options) -> list[InspectedModel]:
    """Inspect the model of each entry.

    Raises:
        InputError: no model, or an option that does not fit it.
    """
    names = [entry.name for entry in entries]
    return [_inspected(entry, options_of(options, entry.name, names)) for entry in entries]


def _inspected(entry: ModelEntry, options: Options) -> InspectedModel:
    interface = read_interface(entry.path)
    backends, obstacle = _backends(entry, interface, options)
    return InspectedModel(
        entry=entry.name,
        path=str(entry.path),
        inputs=tuple(map(str, interface.inputs)),
        defaults=interface.defaults,
        outputs=tuple(map(str, interface.outputs)),
        operators=_operators(entry),
        open_dimensions=_open_dimensions(interface),
        backends=backends,
        obstacle=obstacle,
    )


def _backends(
    entry: ModelEntry, interface: OriginalInterface, options: Options
) -> tuple[tuple[InspectedBackend, ...], str]:
    """Return what the backends take, or the reason why they cannot be asked."""
    if not interface.is_numeric:
        return (), "inputs or outputs are no tensors of numbers: the original model runs whole"
    if interface.untyped:
        return (), interface.untyped
    try:
        listed = list_candidates([entry], options)
    except DimensionError as error:
        return (), str(error)
    return tuple(map(_summarised, listed)), ""


def _summarised(listed: ListedBackend) -> InspectedBackend:
    refused = {reason: len(names) for reason, names in listed.refused.items()}
    taken = {name for candidate in listed.candidates for name in candidate.nodes}
    return InspectedBackend(
        listed.name,
        listed.missing,
        listed.function,
        listed.nodes,
        taken=max(len(taken), listed.alone),
        refused=dict(sorted(refused.items(), key=lambda item: (-item[1], item[0]))),
    )


def _operators(entry: ModelEntry) -> dict[str, int]:
    with open_model(entry.path) as files:
        model = onnx.load_from_string(files.data)
    counts = Counter(
        f"{node.domain}:{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
        for node in _nodes(model.graph)
    )
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph and of the bodies in it."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for body in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _nodes(body)


def _open_dimensions(interface: OriginalInterface) -> tuple[str, ...]:
    """Return the options that bind all open dimensions, those with a name once."""
    named: dict[str, None] = {}
    shapes: list[str] = []
    for value in interface.inputs:
        if value.shape is None:
            shapes.append(f"--shape {value.name}=N,...")
            continue
        axes = [axis for axis, extent in enumerate(value.shape) if extent < 0]
        names = [interface.dim_name(value.name, axis) for axis in axes]
        if all(names):
            named |= dict.fromkeys(names)
        else:
            extents = ",".join("N" if extent < 0 else str(extent) for extent in value.shape)
            shapes.append(f"--shape {value.name}={extents}")
    return (*(f"--dim {name}=N" for name in named), *shapes)
