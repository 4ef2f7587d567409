"""ONNX Runtime's execution providers for a GPU: availability and kernels.

A provider is a shared library beside ONNX Runtime's own; ONNX Runtime opens it together with its vendor
libraries. The plug-in requests the provider from ONNX Runtime, so the reason for a missing one is ONNX
Runtime's message. Without further settings, an operator without a GPU kernel would run on the CPU inside the
session, between two hidden copies. The plug-in forbids that: such a session is refused, and the search places
the operator.
"""

import functools
from collections.abc import Mapping

import numpy as np

from collage.backends.base import Availability, PluginKernel
from collage.backends.common.onnxruntime import ONNXRUNTIME
from collage.errors import BackendError
from collage.frontend.model import Function
from collage.frontend.region import region_onnx, region_values
from collage.graph.dataflow import DataflowGraph
from collage.graph.index_set import IndexSet
from collage.runtime.blob import Header, pack
from collage.runtime.plugin import (
    LIBRARIES,
    PROVIDER_LIBRARIES,
    library_reason,
    library_version,
    load_plugin,
)

_GPU_REQUIREMENT = LIBRARIES[ONNXRUNTIME].requirement.replace("onnxruntime", "onnxruntime-gpu")
ONNXRUNTIME_GPU_PIP = f"pip install '{_GPU_REQUIREMENT}' in place of onnxruntime"
CPU_ONLY = "not enabled in this build"
"""Part of the message of an ONNX Runtime built for CPUs only."""


@functools.cache
def provider_availability(kind: str) -> Availability:
    """Tell whether ONNX Runtime has the provider for kernels of `kind`."""
    import tvm_ffi

    if reason := library_reason(ONNXRUNTIME):
        return Availability(reason)
    try:
        load_plugin()
        tvm_ffi.get_global_func("collage.check_provider")(kind, _located_libraries(kind))
    except (BackendError, RuntimeError) as error:
        return Availability(_advised(essence(error)))
    return Availability("", {ONNXRUNTIME: library_version(ONNXRUNTIME)})


def essence(error: Exception) -> str:
    """Return an error message of ONNX Runtime without locations in its source."""
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    version, _, message = text.partition(": ")
    words = message.rpartition(" : FAIL : ")[2] if message else ""
    return f"{version}: {words}" if words else text


def region_model(function: Function, nodes: IndexSet) -> bytes:
    """Return the region's ONNX bytes."""
    return bytes(region_onnx(function, nodes).SerializeToString())


def session_kernel(
    kind: str,
    function: Function,
    nodes: IndexSet,
    model: bytes,
    *,
    options: Mapping[str, str],
    header_entries: Header | None = None,
) -> PluginKernel:
    """Return a kernel with a session of one provider.

    Args:
        kind: kind of the kernel; it names the provider.
        function: function of the region.
        nodes: nodes of the region.
        model: ONNX bytes of the region, or of one node with its engine.
        options: options of the provider.
        header_entries: additional entries of the blob's header (default: none).
    """
    inputs, outputs = region_values(function, nodes)
    libraries = [ONNXRUNTIME, *_located_libraries(kind)]
    header: Header = {
        "provider_options": [text for pair in options.items() for text in pair],
        "libraries": libraries,
        "input_names": list(inputs), "output_names": list(outputs), **(header_entries or {}),
    }  # fmt: skip
    blob = pack(header, [np.frombuffer(model, np.uint8)])
    return PluginKernel(kind, blob, graph_capturable=False, libraries=frozenset(libraries))


def floats_of(graph: DataflowGraph, nodes: IndexSet) -> frozenset[str]:
    """Return the dtypes of all operands and results of the region's nodes."""
    values = (
        name
        for node in graph.nodes
        if nodes >> node.index & 1
        for name in (*node.inputs, *node.outputs)
    )
    return frozenset(graph.types[name].dtype for name in values if name in graph.types)


def _located_libraries(kind: str) -> list[str]:
    """Return the provider's libraries with a known location; the loader may find the other ones."""
    return [name for name in PROVIDER_LIBRARIES[kind] if not library_reason(name)]


def _advised(reason: str) -> str:
    return f"{reason} {ONNXRUNTIME_GPU_PIP}" if CPU_ONLY in reason else reason
