"""Models that break importers: every one gives a function that ONNX Runtime runs region by region."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnx.helper import make_node as node

from collage.errors import BackendError, ModelError
from collage.frontend import Function, import_model
from collage.frontend.inputs import random_inputs, reference_values
from collage.frontend.region import (
    region_constants,
    region_digest,
    region_onnx,
    region_relax,
    region_values,
)
from collage.graph.op_pattern import OpPatternKind
from tests.frontend.build import floats, imported, integers, model, save


def check_nodes(function: Function, seed: int = 0) -> dict[str, np.ndarray]:
    """Run each node as a region of its own and compare with the reference."""
    values = reference_values(function, random_inputs(function, seed))
    for index in range(len(function.graph)):
        inputs, outputs = region_values(function, 1 << index)
        region = region_onnx(function, 1 << index).SerializeToString()
        session = onnxruntime.InferenceSession(region, providers=["CPUExecutionProvider"])
        results = session.run(list(outputs), {name: values[name] for name in inputs})
        for name, result in zip(outputs, results, strict=True):
            np.testing.assert_allclose(result, values[name], rtol=1e-4, atol=1e-5)
        assert region_digest(function, 1 << index)
    return values


def ops(function: Function) -> list[str]:
    return [node.op for node in function.graph.nodes]


def test_lstm_is_foreign(tmp_path):
    document = model(
        [node("LSTM", ["x", "w", "r"], ["y", "h", "c"], hidden_size=4), node("Relu", ["y"], ["z"])],
        {"x": ("float32", (5, 1, 3))},
        ["z", "h"],
        {"w": floats(1, 16, 3), "r": floats(1, 16, 4)},
    )
    function = imported(document, tmp_path)
    assert ops(function) == ["LSTM", "Relu"]
    assert function.relax_nodes[0] is None
    assert function.graph.nodes[0].kind == OpPatternKind.OPAQUE
    assert function.graph.types["y"].shape == (5, 1, 1, 4)
    with pytest.raises(BackendError, match="LSTM"):
        region_relax(function, 0b11)
    check_nodes(function)


def branches() -> onnx.NodeProto:
    """`If` whose branches read the outer values `x` and the weight `w`."""
    bodies = {}
    for name, op in (("then_branch", "Add"), ("else_branch", "Mul")):
        out = helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, [2, 3])
        call = node(op, ["x", "w"], [f"{name}_y"])
        bodies[name] = helper.make_graph([call], name, [], [out])
    return node("If", ["c"], ["y"], **bodies)


def test_captures_of_if_are_inputs(tmp_path):
    document = model(
        [node("Relu", ["a"], ["x"]), branches(), node("Neg", ["y"], ["z"])],
        {"a": ("float32", (2, 3)), "c": ("bool", ())},
        ["z"],
        {"w": floats(3)},
    )
    function = imported(document, tmp_path)
    assert ops(function) == ["Relu", "If", "Neg"]
    assert function.graph.nodes[1].inputs == ("c", "x", "w")
    assert region_values(function, 0b010)[0] == ("c", "x")
    assert function.relax_nodes[1] is None
    check_nodes(function)


def test_dynamic_quantisation(tmp_path):
    document = model(
        [
            node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"]),
            node("ConvInteger", ["q", "w", "zero"], ["i"]),
            node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
            node("Mul", ["f", "scale"], ["y"]),
        ],
        {"x": ("float32", (1, 3, 8, 8))},
        ["y"],
        {"w": np.random.default_rng(0).integers(-9, 9, (4, 3, 3, 3)).astype(np.int8)},
    )
    function = imported(document, tmp_path)
    assert function.relax_nodes[ops(function).index("ConvInteger")] is None
    assert function.graph.types["y"].shape == (1, 4, 6, 6)
    check_nodes(function)


def test_opset_nine_with_weights_among_the_inputs(tmp_path):
    document = model(
        [
            node("Clip", ["x"], ["c"], min=-1.0, max=1.0),
            node("Squeeze", ["c"], ["s"], axes=[0]),
            node("MatMul", ["s", "w"], ["m"]),
            node("Softmax", ["m"], ["y"], axis=1),
        ],
        {"x": ("float32", (1, 4, 3)), "w": ("float32", (3, 2))},
        ["y"],
        {"w": floats(3, 2)},
        opset=9,
    )
    document.ir_version = 3
    function = imported(document, tmp_path)
    assert function.graph.inputs == ("x",)
    assert function.graph.constants == {"w"}
    assert None not in list(function.relax_nodes)
    check_nodes(function)


def test_several_outputs_and_integer_inputs(tmp_path):
    document = model(
        [
            node("Gather", ["table", "ids"], ["e"]),
            node("Split", ["e"], ["a", "b"], axis=2, num_outputs=2),
            node("TopK", ["a", "k"], ["best", "where"]),
        ],
        {"ids": ("int64", (1, 7))},
        ["b", "best", "where"],
        {"table": floats(50, 16), "k": integers(3)},
    )
    function = imported(document, tmp_path)
    assert region_values(function, 0b110) == (("e",), ("b", "best", "where"))
    assert region_constants(function, 0b111) == ("table",)
    module = region_relax(function, 0b110)
    assert len(module["main"].ret_ty.fields) == 3
    values = check_nodes(function)
    assert values["ids"].max() > 20


def test_shapes_that_depend_on_data_stay_open(tmp_path):
    document = model(
        [
            node("Relu", ["x"], ["r"]),
            node("NonZero", ["r"], ["n"]),
            node("Transpose", ["n"], ["t"]),
            node("Cast", ["t"], ["y"], to=TensorProto.FLOAT),
        ],
        {"x": ("float32", (2, 3))},
        ["y", "r"],
    )
    imported_model = import_model(save(document, tmp_path), work_dir=tmp_path / "work")
    function = imported_model.functions[0]
    assert set(function.graph.types) == {"x", "r"}
    assert [relax_node is None for relax_node in function.relax_nodes] == [False, True, True, True]
    assert "3 values have no shape" in imported_model.notes[0]
    check_nodes(function)


def test_other_domains_are_foreign_and_their_shapes_observed(tmp_path):
    document = model(
        [
            node("FusedMatMul", ["x", "w"], ["m"], domain="com.microsoft", transA=1, alpha=0.5),
            node("Relu", ["m"], ["y"]),
        ],
        {"x": ("float32", (3, 4))},
        ["y"],
        {"w": floats(3, 5)},
        domains=["com.microsoft"],
    )
    function = imported(document, tmp_path)
    assert ops(function) == ["com.microsoft.FusedMatMul", "Relu"]
    assert function.graph.types["m"].shape == (4, 5)
    assert function.relax_nodes[0] is None
    assert function.relax_nodes[1] is not None
    assert [entry.domain for entry in region_onnx(function, 0b10).opset_import] == [""]
    check_nodes(function)


def test_observed_shapes_open_the_way_to_later_ones(tmp_path):
    def scaler(source, target):
        scale = {"offset": [1.0], "scale": [2.0]}
        return node("Scaler", [source], [target], domain="ai.onnx.ml", **scale)

    document = model(
        [
            scaler("x", "a"),
            node("Reshape", ["a", "flat"], ["b"]),
            scaler("b", "c"),
            node("Reshape", ["c", "column"], ["y"]),
        ],
        {"x": ("float32", (3, 4))},
        ["y"],
        {"flat": integers(1, -1), "column": integers(-1, 1)},
        domains=["ai.onnx.ml"],
    )
    document.graph.output[0].CopyFrom(
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 1])
    )
    imported_model = import_model(save(document, tmp_path), work_dir=tmp_path)
    function = imported_model.functions[0]
    assert imported_model.notes == ()
    assert function.graph.types["c"].shape == (1, 12)
    assert function.graph.types["y"].shape == (12, 1)
    check_nodes(function)


def test_local_functions_are_inlined(tmp_path):
    document = model([node("Twice", ["x"], ["y"], domain="mine")], {"x": ("float32", (2,))}, ["y"],
                 domains=["mine"])  # fmt: skip
    document.functions.append(
        helper.make_function("mine", "Twice", ["a"], ["b"], [node("Add", ["a", "a"], ["b"])],
                             [helper.make_opsetid("", 18)])
    )  # fmt: skip
    function = imported(document, tmp_path)
    assert ops(function) == ["Add"]
    assert function.relax_nodes[0].operands == ("x",)
    check_nodes(function)


def test_external_data_is_read_and_counted_in_the_digest(tmp_path):
    document = model([node("MatMul", ["x", "w"], ["y"])], {"x": ("float32", (2, 64))}, ["y"],
                 {"w": floats(64, 64)})  # fmt: skip
    path = tmp_path / "model.onnx"
    onnx.save(document, path, save_as_external_data=True, location="data.bin", size_threshold=0)
    before = import_model(path, work_dir=tmp_path / "work")
    check_nodes(before.functions[0])
    data = bytearray((tmp_path / "data.bin").read_bytes())
    data[0] ^= 1
    (tmp_path / "data.bin").write_bytes(bytes(data))
    after = import_model(path, work_dir=tmp_path / "work")
    assert before.sha256 != after.sha256


def test_large_models_are_written_with_external_data(tmp_path, monkeypatch):
    monkeypatch.setattr("collage.frontend.fold.LARGE_MODEL_BYTES", 1000)
    document = model(
        [node("MatMul", ["x", "w"], ["m"]), node("Add", ["m", "b"], ["y"])],
        {"x": ("float32", (2, 64))},
        ["y"],
        {"w": floats(64, 64), "b": floats(64)},
    )
    imported_model = import_model(save(document, tmp_path), work_dir=tmp_path / "work")
    assert imported_model.notes == ()
    assert (tmp_path / "work" / "main.simplified.onnx.data").stat().st_size >= 64 * 64 * 4
    assert sorted(file.name for file in (tmp_path / "work").iterdir()) == [
        "main.simplified.onnx",
        "main.simplified.onnx.data",
    ]
    check_nodes(imported_model.functions[0])


def test_sparse_weights_become_dense(tmp_path):
    document = model([node("MatMul", ["x", "w"], ["y"])], {"x": ("float32", (2, 3))}, ["y"])
    places = onnx.numpy_helper.from_array(np.array([[0, 1], [2, 0]]), "places")
    values = onnx.numpy_helper.from_array(np.array([5, 7], np.float32), "w")
    document.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [3, 4]))
    function = imported(document, tmp_path)
    assert function.weights["w"].tolist() == [[0, 5, 0, 0], [0, 0, 0, 0], [7, 0, 0, 0]]
    check_nodes(function)


def test_outputs_must_be_tensors(tmp_path):
    document = model(
        [node("SequenceConstruct", ["x", "x"], ["y"])], {"x": ("float32", (2,))}, ["y"]
    )
    with pytest.raises(ModelError, match="output y is a sequence"):
        imported(document, tmp_path)


def test_sequences_inside_are_foreign(tmp_path):
    document = model(
        [
            node("SequenceConstruct", ["x", "x"], ["s"]),
            node("ConcatFromSequence", ["s"], ["y"], axis=0),
        ],
        {"x": ("float32", (2,))},
        ["y"],
    )
    function = imported(document, tmp_path)
    assert list(function.relax_nodes) == [None, None]
    assert region_values(function, 0b10)[0] == ("s",)
    values = reference_values(function, random_inputs(function, 0))
    assert values["y"].shape == (4,)
    onnxruntime.InferenceSession(region_onnx(function, 0b10).SerializeToString())
