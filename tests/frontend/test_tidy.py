"""After import a graph has computing nodes only, and its outputs are results, inputs or weights."""

import numpy as np
import onnx
import onnxruntime
from onnx.helper import make_node as node
from onnx.helper import make_tensor

from collage.frontend.fold import fold
from collage.frontend.tidy import tidy
from tests.frontend.build import floats, imported, integers, model


def test_identities_and_constants_go(tmp_path):
    constant = make_tensor("c", onnx.TensorProto.FLOAT, [1], [2.0])
    document = model(
        [
            node("Identity", ["x"], ["a"]),
            node("Constant", [], ["two"], value=constant),
            node("Mul", ["a", "two"], ["m"]),
            node("Identity", ["m"], ["n"]),
            node("Relu", ["n"], ["r"]),
            node("Identity", ["r"], ["y"]),
        ],
        {"x": ("float32", (3,))},
        ["y"],
    )
    tidy(document)
    assert [proto.op_type for proto in document.graph.node] == ["Mul", "Relu"]
    assert document.graph.node[1].output == ["y"]
    assert [tensor.name for tensor in document.graph.initializer] == ["two"]


def test_inputs_and_weights_may_be_outputs_each_once(tmp_path):
    document = model(
        [node("Relu", ["x"], ["r"]), node("Identity", ["r"], ["s"])],
        {"x": ("float32", (3,))},
        ["r", "s", "x", "w", "r"],
        {"w": floats(3)},
    )
    function = imported(document, tmp_path)
    graph = function.graph
    assert graph.outputs == ("r", "s", "x", "w")
    assert [proto.op for proto in graph.nodes] == ["Relu", "Identity"]
    assert {graph.types[name].shape for name in graph.outputs} == {(3,)}
    assert set(function.weights) == {"w"}


def test_a_graph_may_have_no_node(tmp_path):
    document = model([], {"x": ("float32", (2, 3)), "unused": ("int64", ())}, ["x"])
    graph = imported(document, tmp_path).graph
    assert (graph.inputs, graph.outputs, graph.nodes) == (("x", "unused"), ("x",), ())
    assert graph.types["x"].shape == (2, 3)


def test_casts_to_the_same_type_go(tmp_path):
    nodes = [
        node("Cast", ["x"], ["a"], to=onnx.TensorProto.FLOAT),
        node("Relu", ["a"], ["b"]),
        node("Cast", ["b"], ["y"], to=onnx.TensorProto.FLOAT),
        node("Cast", ["b"], ["z"], to=onnx.TensorProto.INT32),
    ]
    document = model(nodes, {"x": ("float32", (3,))}, ["y", "z"])
    operators = [proto.op for proto in imported(document, tmp_path).graph.nodes]
    assert sorted(operators) == ["Cast", "Cast", "Relu"]


def test_dead_and_unsorted_nodes(tmp_path):
    document = model(
        [node("Relu", ["b"], ["y"]), node("Neg", ["x"], ["b"]), node("Abs", ["x"], ["dead"])],
        {"x": ("float32", (3,))},
        ["y"],
    )
    tidy(document)
    assert [proto.op_type for proto in document.graph.node] == ["Neg", "Relu"]
    assert len({proto.name for proto in document.graph.node}) == 2


def test_unused_optional_outputs_go(tmp_path):
    document = model(
        [node("MaxPool", ["x"], ["p", "places"], kernel_shape=[2, 2])],
        {"x": ("float32", (1, 1, 4, 4))},
        ["p"],
    )
    function = imported(document, tmp_path)
    assert function.graph.nodes[0].outputs == ("p",)
    assert function.relax_nodes[0] is not None


def test_matmul_and_add_stay(tmp_path):
    document = model(
        [node("MatMul", ["x", "w"], ["m"]), node("Add", ["m", "b"], ["y"])],
        {"x": ("float32", (1, 5, 8))},
        ["y"],
        {"w": floats(8, 8), "b": floats(8)},
    )
    assert [proto.op for proto in imported(document, tmp_path).graph.nodes] == ["MatMul", "Add"]


def test_shape_chains_and_batch_norms_fold(tmp_path):
    document = model(
        [
            node("Conv", ["x", "w"], ["c"]),
            node("BatchNormalization", ["c", "s", "s", "s", "s"], ["n"]),
            node("Shape", ["n"], ["shape"]),
            node("Gather", ["shape", "zero"], ["batch"]),
            node("Concat", ["batch", "rest"], ["wanted"], axis=0),
            node("Reshape", ["n", "wanted"], ["y"]),
        ],
        {"x": ("float32", (2, 3, 4, 4))},
        ["y"],
        {"w": floats(4, 3, 1, 1), "s": np.ones(4, np.float32), "zero": integers(0),
         "rest": integers(-1)},
    )  # fmt: skip
    function = imported(document, tmp_path)
    assert [proto.op for proto in function.graph.nodes] == ["Conv", "Reshape"]
    assert function.graph.types["y"].shape == (2, 64)


def test_a_model_that_the_optimiser_breaks_is_kept(tmp_path, monkeypatch):
    real = onnxruntime.InferenceSession

    def refuse(source, options, **keywords):
        if str(source).endswith("folded.onnx"):
            raise RuntimeError("Type Error: nobody expects this")
        return real(source, options, **keywords)

    monkeypatch.setattr(onnxruntime, "InferenceSession", refuse)
    document = model([node("Relu", ["x"], ["y"])], {"x": ("float32", (1,))}, ["y"])
    result, note = fold(document, tmp_path)
    assert result is document
    assert note == "constants were not folded: Type Error: nobody expects this"
