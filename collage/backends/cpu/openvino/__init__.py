"""OpenVINO on the CPU: any region of operators supported by its ONNX reader.

A fixed table lists operators without a conversion. For other nodes OpenVINO itself decides, by reading a
model of that one node with its opset, attributes and types; equal nodes are read once. Products compute in
f32; in the variant "bf16" products, and other operations of OpenVINO's choice, compute in bf16.
"""

import functools
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import onnx

from collage.backends.base import Availability, Backend, BackendStyle, BuildContext, PluginKernel
from collage.backends.telemetry import import_openvino
from collage.errors import BackendError
from collage.frontend.index_checks import checks_entry, index_checks
from collage.frontend.model import Function
from collage.frontend.region import region_digest, region_onnx
from collage.graph.dynamic_shape_groups import returns_dynamic_shape
from collage.graph.index_set import IndexSet
from collage.runtime.blob import Header, pack
from collage.runtime.plugin import library_reason, library_version

if TYPE_CHECKING:
    import openvino

OPENVINO = "openvino"

NEVER_CONVERTED = frozenset({
    "BitCast", "CausalConvWithState", "ConcatFromSequence", "CumProd", "DeformConv", "Det",
    "ImageDecoder", "LinearAttention", "MaxUnpool", "MelWeightMatrix", "Optional",
    "OptionalGetElement", "OptionalHasElement", "RegexFullMatch", "SequenceAt", "SequenceConstruct",
    "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceLength", "SequenceMap",
    "SplitToSequence", "StringConcat", "StringNormalizer", "StringSplit", "SwiGLU", "TensorScatter",
    "TfIdfVectorizer",
})  # fmt: skip
"""Operators without a conversion rule in 2026.4 (and sequences, which are no tensors)."""

WITHOUT_QUANTISATION = frozenset({
    "DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "MatMulIntegerToFloat",
})  # fmt: skip
"""Operators that 2026.4 computes from unquantised activations: one per cent of the scale beside the original,
which a chain of them multiplies."""

WIDE_INTEGERS = frozenset({"int32", "int64", "uint32", "uint64"})
"""Integers that float32 has not all of."""

DTYPES = frozenset({
    "float32", "float16", "float64", "bfloat16", "int8", "int16", "int32", "int64", "uint8",
    "uint16", "uint32", "uint64", "bool",
})  # fmt: skip


class OpenVinoBackend(Backend):
    """Regions as ONNX models, read and compiled by OpenVINO (style GRAPH)."""

    name = "openvino"
    style = BackendStyle.GRAPH
    reduced = MappingProxyType({"bf16": "bf16"})

    def __init__(self) -> None:
        self._refusals: dict[str, str | None] = {}

    def availability(self) -> Availability:
        if reason := library_reason(OPENVINO):
            return Availability(reason)
        return Availability("", {OPENVINO: library_version(OPENVINO)})

    def unsupported(self, function: Function, node: int) -> str | None:
        """Return OpenVINO's reason or None; the first of equal nodes takes a millisecond."""
        graph_node = function.graph.nodes[node]
        operator = function.onnx_nodes[node].op_type
        if operator in NEVER_CONVERTED:
            return f"OpenVINO has no {operator}"
        if operator in WITHOUT_QUANTISATION:
            return f"OpenVINO computes {operator} without quantising its input"
        if operator in ("Div", "Mod"):
            dtype = function.type_of(graph_node.outputs[0]).dtype
            if dtype in WIDE_INTEGERS:
                return f"OpenVINO divides {dtype} as float32"
        for value in (*graph_node.inputs, *graph_node.outputs):
            if not value or value in function.weights:
                continue
            dtype = function.type_of(value).dtype
            if dtype not in DTYPES:
                return f"OpenVINO has no tensors of {dtype or 'an unknown type'} ({value!r})"
        if returns_dynamic_shape(function.graph, 1 << node):
            return "the function returns a tensor whose shape depends on data"
        return self._reader_refusal(function, node)

    def compile(
        self, function: Function, nodes: IndexSet, context: BuildContext, variant: str = ""
    ) -> PluginKernel:
        if variant not in (*self.variants, *self.reduced):
            raise BackendError(f"openvino has no variant {variant!r}")
        precision = self.reduced.get(variant, "f32")
        header: Header = {"inference_precision": precision, "threads": context.threads}
        if checks := checks_entry(index_checks(function, nodes)):
            header = {**header, "index_checks": list(checks)}
        model = region_onnx(function, nodes).SerializeToString()
        blob = pack(header, [np.frombuffer(model, np.uint8)])
        return PluginKernel("openvino", blob, libraries=frozenset({"openvino"}))

    def _reader_refusal(self, function: Function, node: int) -> str | None:
        digest = region_digest(function, 1 << node)
        if digest not in self._refusals:
            self._refusals[digest] = refusal(region_onnx(function, 1 << node))
        return self._refusals[digest]


def refusal(model: onnx.ModelProto) -> str | None:
    """Return OpenVINO's message on refusing `model`, None where it reads it with all its inputs."""
    try:
        converted = _core().read_model(model.SerializeToString())
    except RuntimeError as error:
        return f"OpenVINO refuses to read it: {reason_in(str(error))}"
    count, kept = len(model.graph.input), len(converted.inputs)
    return f"OpenVINO drops {count - kept} of its inputs" if kept < count else None


def reason_in(message: str) -> str:
    """Return the reason in OpenVINO's message; its other lines are locations and advice."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    for line in lines:
        if "No conversion rule found" in line:
            return line.removeprefix("-- ")[:200]
    details = lines[: lines.index("Summary:")] if "Summary:" in lines else lines
    return details[-1][:200] if details else "no reason given"


@functools.cache
def _core() -> "openvino.Core":
    core: openvino.Core = import_openvino().Core()
    return core
