"""Types of outputs that the file does not state: asked in a child process, within its limits."""

import onnx
import pytest
from onnx.helper import make_node as node

from collage.errors import ModelError
from collage.frontend.onnxruntime_types import runtime_type
from collage.frontend.original_interface import read_interface
from collage.import_limits import NODES, SECONDS
from tests.frontend.build import floats, model, save
from tests.frontend.hostile_models import nested_functions


def unique(folder):
    """Write a model with an operator that only ONNX Runtime knows."""
    document = model(
        [
            node("Relu", ["x"], ["r"]),
            node("Unique", ["r"], ["y", "i", "n"], domain="com.microsoft"),
        ],
        {"x": ("float32", ("length",))},
        ["y", "n", "x", "w"],
        {"w": floats(3)},
        domains=["com.microsoft"],
    )
    return save(document, folder)


def no_inference(*arguments, **options):
    raise AssertionError("the process of the compile must not read the model's nodes")


def test_an_output_has_the_type_that_onnx_runtime_knows(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", no_inference)
    interface = read_interface(unique(tmp_path))
    assert list(map(str, interface.outputs)) == [
        "y: float32[...]",
        "n: int64[...]",
        "x: float32[?]",
        "w: float32[3]",
    ]
    assert interface.untyped == ""


def test_an_inferred_output_keeps_its_shape(tmp_path, monkeypatch):
    document = model(
        [node("Split", ["x"], ["y", "z"], num_outputs=2)], {"x": ("float32", (4, "n"))}, ["z"]
    )
    path = save(document, tmp_path)
    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", no_inference)
    assert list(map(str, read_interface(path).outputs)) == ["z: float32[2, ?]"]


def test_an_operator_that_nobody_knows_leaves_a_reason(tmp_path):
    document = model(
        [node("Nothing", ["x"], ["y"], domain="own")], {"x": ("float32", (4,))}, ["y", "x"],
        domains=["own"],
    )  # fmt: skip
    interface = read_interface(save(document, tmp_path))
    assert [value.name for value in interface.outputs] == ["x"]
    assert interface.untyped.startswith("ONNX Runtime has no type for the output y (")
    assert "Nothing" in interface.untyped


def test_types_are_asked_within_the_limits_of_import(tmp_path, monkeypatch):
    document = onnx.load_from_string(nested_functions(levels=23))
    document.graph.output[0].ClearField("type")
    path = save(document, tmp_path)
    monkeypatch.setenv(NODES, "10000000")
    monkeypatch.setenv(SECONDS, "1")
    with pytest.raises(ModelError, match=SECONDS):
        read_interface(path)


@pytest.mark.parametrize(
    ("text", "number"),
    [("tensor(double)", 11), ("tensor(float8e4m3fn)", 17), ("tensor(string)", 8)],
)
def test_elements_of_tensors_are_those_of_onnx(text, number):
    assert runtime_type(text).tensor_type.elem_type == number


def test_types_within_types_are_read():
    maps = runtime_type("seq(map(int64,tensor(float)))").sequence_type.elem_type
    assert (maps.map_type.key_type, maps.map_type.value_type.tensor_type.elem_type) == (7, 1)
    assert runtime_type("optional(seq(tensor(bool)))").optional_type.elem_type.HasField(
        "sequence_type"
    )


@pytest.mark.parametrize("text", ["sparse_tensor(float)", "opaque(a,b)", "tensor(quaternion)"])
def test_a_type_without_a_message_is_refused(text):
    with pytest.raises(ModelError):
        runtime_type(text)
