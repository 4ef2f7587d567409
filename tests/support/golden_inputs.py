"""Fixed inputs of the golden tests: nothing here depends on the machine or on a library's version."""

import hashlib
import json
from pathlib import Path

import numpy as np
import onnx
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from onnx import helper, numpy_helper

from collage.backends.base import Availability, Backend, BuildContext, PluginKernel
from collage.cost import Environment
from collage.frontend.model import Function
from collage.graph.index_set import IndexSet
from collage.pipeline.request import CompileRequest, RequestedModel, RequestOptions
from collage.runtime.envelope import Signer

CPU = Environment(
    cpu="Example CPU 3.0 GHz (ExampleVendor/6/85/7)",
    cpu_features="0123456789abcdef",
    cores=8,
    threads=2,
    driver="",
    protocol="cold-2",
)
GPU = Environment(
    cpu=CPU.cpu,
    cpu_features=CPU.cpu_features,
    cores=CPU.cores,
    threads=2,
    driver="Example GPU sm_90 driver 600.10, unknown clocks",
    protocol="cuda-cold-2",
)
REQUEST = CompileRequest(
    name="small",
    models=(RequestedModel(model="a" * 64, external={"weights.bin": "b" * 64}),),
    environment="pool",
    threads=2,
    options=RequestOptions(backends=("onednn", "tvm"), dims={"batch": 1}, precision="auto"),
)


def example_model(path: Path, external: bool = False) -> Path:
    """Save a model with convolutions, products, constants that decide shapes, and a body of If.

    Args:
        path: of the ONNX file.
        external: whether weights lie in a second file, `weights.bin` beside it.
    """
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1], kernel_shape=[3, 3]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], kernel_shape=[1, 1]),
        helper.make_node("Add", ["c2", "r1"], ["s"]),
        helper.make_node("Mul", ["s", "half"], ["m"]),
        helper.make_node("GlobalAveragePool", ["m"], ["p"]),
        helper.make_node("Reshape", ["p", "flat"], ["f"]),
        helper.make_node("MatMul", ["f", "w3"], ["l"]),
        helper.make_node("Softmax", ["l"], ["y"], axis=-1),
        helper.make_node("ReduceMax", ["l"], ["top"], keepdims=0),
        helper.make_node("Greater", ["top", "half"], ["large"]),
        helper.make_node(
            "If", ["large"], ["z"], then_branch=_body("Neg"), else_branch=_body("Abs")
        ),
    ]
    weights = {
        "w1": _ramp(8, 3, 3, 3),
        "b1": _ramp(8),
        "w2": _ramp(8, 8, 1, 1),
        "w3": _ramp(8, 5),
        "half": np.array(0.5, np.float32),
        "flat": np.array([1, 8], np.int64),
    }
    graph = helper.make_graph(
        nodes,
        "example",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 3, 12, 12])],
        [
            helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 5]),
            helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, [1, 5]),
        ],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(made, path, save_as_external_data=external, location="weights.bin", size_threshold=64)
    return path


def _body(operator: str) -> onnx.GraphProto:
    result = helper.make_tensor_value_info("b", onnx.TensorProto.FLOAT, [1, 5])
    return helper.make_graph([helper.make_node(operator, ["l"], ["b"])], operator, [], [result])


def _ramp(*shape: int) -> np.ndarray:
    count = int(np.prod(shape))
    return (np.arange(count, dtype=np.float32) / count - 0.5).reshape(shape)


class ExampleBackend(Backend):
    """A backend with pinned versions."""

    name = "example"

    def availability(self) -> Availability:
        return Availability("", {"library": "1.31.0", "another": "2026.4"})

    def unsupported(self, function: Function, node: int) -> str | None:
        return None

    def compile(
        self, function: Function, nodes: IndexSet, context: BuildContext, variant: str = ""
    ) -> PluginKernel:
        return PluginKernel("example", b"", libraries=frozenset())


def example_bundle(folder: Path) -> Path:
    """Write a bundle that can be published, and whose manifest is the same on every machine."""
    folder.mkdir()
    contents = {"model.so": b"code", "plan.json": b"[]", "summary.json": b"{}"}
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    manifest = {
        "schema_version": 3, "executable": "model.so", "functions": [], "gate": [], "threads": 1,
        "cpu": {"model": "any", "features": []}, "libraries": {},
        "provenance": {
            "models": [{"path": "small.onnx", "sha256": "a" * 64}], "collage_version": "1.0",
            "environment_digest": CPU.digest, "seed": 7, "toolchains": {"example": "example 1"},
        },
        "files": {name: hashlib.sha256(one).hexdigest() for name, one in contents.items()},
    }  # fmt: skip
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def example_signer(folder: Path) -> Signer:
    """Write the private key of the golden tests, whose signatures are always the same; return its signer."""
    key = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    file = folder / "golden.pem"
    file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return Signer(file)
