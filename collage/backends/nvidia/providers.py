"""ONNX Runtime's execution providers for a GPU: are they here, and regions as blobs of their kernels.

A provider is a shared library beside ONNX Runtime's own, which opens it with the vendor libraries that it
needs. The plug-in asks ONNX Runtime for the provider, so what is missing is said in its own words. An
operator without a kernel on the GPU would run on the CPU inside the session, with a copy each way that
nobody sees; the plug-in forbids that, so a session is refused instead, and the search decides where
the operator goes.
"""

import functools
from collections.abc import Mapping

import numpy as np

from collage.backends.base import Availability, PluginKernel
from collage.errors import BackendError
from collage.frontend.model import Function
from collage.frontend.region import region_onnx, region_values
from collage.graph.dataflow import DataflowGraph
from collage.graph.index_set import IndexSet
from collage.runtime.blob import Header, pack
from collage.runtime.plugin import (
    PROVIDER_LIBRARIES,
    library_reason,
    library_version,
    load_plugin,
)

LIBRARY = "onnxruntime"
PIP = "pip install 'onnxruntime-gpu>=1.31,<1.32' in place of onnxruntime"
ABSENT = "not enabled in this build"
"""What an ONNX Runtime for CPUs says of the providers."""


@functools.cache
def provider_availability(kind: str) -> Availability:
    """Tell whether ONNX Runtime has the provider of kernels of `kind`."""
    import tvm_ffi

    if reason := library_reason(LIBRARY):
        return Availability(reason)
    try:
        load_plugin()
        tvm_ffi.get_global_func("collage.check_provider")(kind, _found(kind))
    except (BackendError, RuntimeError) as error:
        return Availability(_advised(essence(error)))
    return Availability("", {LIBRARY: library_version(LIBRARY)})


def essence(error: Exception) -> str:
    """Return an error of ONNX Runtime without the places in its source."""
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    version, _, rest = text.partition(": ")
    words = rest.rpartition(" : FAIL : ")[2] if rest else ""
    return f"{version}: {words}" if words else text


def region_model(function: Function, nodes: IndexSet) -> bytes:
    """Return the region's ONNX bytes."""
    return region_onnx(function, nodes).SerializeToString()


def session_kernel(
    kind: str,
    function: Function,
    nodes: IndexSet,
    model: bytes,
    options: Mapping[str, str],
    more: Header | None = None,
) -> PluginKernel:
    """Return a kernel that runs the model of a region in a session with one provider.

    Args:
        kind: which provider.
        function: of the region.
        nodes: the region.
        model: ONNX bytes of the region, or of one node that holds the engine of it.
        options: of the provider.
        more: entries of the blob's header.
    """
    inputs, outputs = region_values(function, nodes)
    header: Header = {
        "provider_options": [text for pair in options.items() for text in pair],
        "libraries": [LIBRARY, *_found(kind)],
        "input_names": list(inputs), "output_names": list(outputs), **(more or {}),
    }  # fmt: skip
    return PluginKernel(kind, pack(header, [np.frombuffer(model, np.uint8)]), captures=False)


def floats_of(graph: DataflowGraph, nodes: IndexSet) -> frozenset[str]:
    """Return the dtypes of all values that the region's nodes read and write."""
    values = (
        name
        for node in graph.nodes
        if nodes >> node.index & 1
        for name in (*node.inputs, *node.outputs)
    )
    return frozenset(graph.types[name].dtype for name in values if name in graph.types)


def _found(kind: str) -> list[str]:
    """The provider's libraries that are in a place which we know; the loader may know the others."""
    return [name for name in PROVIDER_LIBRARIES[kind] if not library_reason(name)]


def _advised(reason: str) -> str:
    return f"{reason} {PIP}" if ABSENT in reason else reason
