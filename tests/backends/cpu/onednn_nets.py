"""Nets for oneDNN, and a comparison of its kernels with ONNX Runtime."""

import numpy as np
import onnxruntime
from onnx import helper

from collage.backends.base import BuildContext
from collage.backends.cpu.onednn import OneDnnBackend
from collage.frontend.region import region_onnx, region_values
from collage.runtime.blob import unpack
from tests.frontend.build import floats, imported, model
from tests.runtime.executables import call_kernel

BACKEND = OneDnnBackend()
IMAGE, ROWS = (2, 16, 9, 11), (2, 3, 5, 8)


def node(op, inputs, outputs=("y",), **attributes):
    return helper.make_node(op, list(inputs), list(outputs), **attributes)


def make(folder, nodes, shapes, weights=None, opset=20, outputs=("y",), dtype="float32"):
    inputs = {name: (dtype, shape) for name, shape in shapes.items()}
    return imported(model(nodes, inputs, outputs, weights, opset), folder)


def check(function, nodes=None, variant="", positive=False):
    """Compare with ONNX Runtime; return the kernel's steps."""
    nodes = function.graph.everything if nodes is None else nodes
    inputs, outputs = region_values(function, nodes)
    types = function.graph.types
    feeds = {name: floats(*types[name].shape, seed=len(name)) for name in inputs}
    if positive:
        feeds = {name: np.abs(value) + np.float32(0.1) for name, value in feeds.items()}
    session = onnxruntime.InferenceSession(region_onnx(function, nodes).SerializeToString())
    expected = session.run(list(outputs), feeds)
    kernel = BACKEND.compile(function, nodes, BuildContext(1), variant)
    arrays = [np.full(types[name].shape, np.nan, "float32") for name in outputs]
    call_kernel(kernel.kind, kernel.blob, list(feeds.values()), arrays)
    for value, reference in zip(arrays, expected, strict=True):
        scale = np.abs(reference).max()
        np.testing.assert_allclose(value, reference, rtol=1e-4, atol=1e-5 * scale)
    return unpack(kernel.blob)[0]["steps"]


def number(value):
    return {"c": np.float32(value)}
