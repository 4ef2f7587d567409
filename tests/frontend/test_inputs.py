"""Inputs are valid and repeatable; the reference survives the disk."""

import numpy as np
import pytest
from onnx import TensorProto
from onnx.helper import make_node as node

from collage.errors import ModelError
from collage.frontend.inputs import (
    load_reference,
    random_inputs,
    reference_values,
    save_reference,
)
from tests.frontend.build import floats, imported, integers, model


def test_indices_fit_the_tables_they_reach(tmp_path):
    document = model(
        [
            node("Cast", ["ids"], ["wide"], to=TensorProto.INT64),
            node("Reshape", ["wide", "flat"], ["line"]),
            node("Gather", ["big", "line"], ["a"]),
            node("Gather", ["small", "line"], ["b"]),
            node("Add", ["a", "b"], ["y"]),
        ],
        {"ids": ("int32", (4, 50))},
        ["y"],
        {"big": floats(900, 2), "small": floats(30, 2), "flat": integers(-1)},
    )
    ids = random_inputs(imported(document, tmp_path), 0)["ids"]
    assert ids.dtype == np.int32
    assert (ids.min(), ids.max()) == (0, 29)


def test_masks_are_ones_and_bytes_are_full_range(tmp_path):
    document = model(
        [
            node("Cast", ["attention_mask"], ["m"], to=TensorProto.FLOAT),
            node("Cast", ["image"], ["i"], to=TensorProto.FLOAT),
            node("Cast", ["flag"], ["f"], to=TensorProto.FLOAT),
            node("Sum", ["m", "i", "f", "x"], ["y"]),
        ],
        {
            "attention_mask": ("int64", (2, 99)),
            "image": ("uint8", (2, 99)),
            "flag": ("bool", (2, 99)),
            "x": ("float32", (2, 99)),
        },
        ["y"],
    )
    function = imported(document, tmp_path)
    inputs = random_inputs(function, 3)
    assert inputs["attention_mask"].all()
    assert inputs["image"].max() > 200
    assert 0 < inputs["flag"].mean() < 1
    again = random_inputs(function, 3)
    assert all(np.array_equal(inputs[name], again[name]) for name in inputs)
    assert not np.array_equal(inputs["x"], random_inputs(function, 4)["x"])


def test_smaller_integers_where_the_model_refuses(tmp_path):
    """No rule knows the range of this index: it passes through a sum."""
    document = model(
        [node("Add", ["i", "one"], ["j"]), node("Gather", ["w", "j"], ["y"])],
        {"i": ("int64", (64,))},
        ["y"],
        {"w": floats(3, 2), "one": integers(1)},
    )
    function = imported(document, tmp_path)
    inputs = random_inputs(function, 0)
    assert inputs["i"].max() == 1
    assert reference_values(function, inputs)["y"].shape == (64, 2)


def test_a_model_that_never_runs(tmp_path):
    document = model(
        [node("Add", ["i", "far"], ["j"]), node("Gather", ["w", "j"], ["y"])],
        {"i": ("int64", (4,))},
        ["y"],
        {"w": floats(3, 2), "far": integers(100)},
    )
    function = imported(document, tmp_path)
    with pytest.raises(ModelError, match="generated inputs"):
        reference_values(function, random_inputs(function, 0))


def test_reference_on_disk(tmp_path):
    document = model(
        [
            node("MatMul", ["x", "w"], ["m"]),
            node("Cast", ["m"], ["h"], to=TensorProto.FLOAT16),
            node("Greater", ["x", "x"], ["g"]),
        ],
        {"x": ("float32", (2, 40))},
        ["h", "g"],
        {"w": floats(40, 40)},
    )
    function = imported(document, tmp_path)
    values = reference_values(function, random_inputs(function, 0))
    assert set(values) == {"x", "m", "h", "g"}
    save_reference(values, tmp_path / "reference")
    loaded = load_reference(tmp_path / "reference")
    assert set(loaded) == set(values)
    for name, value in values.items():
        assert isinstance(loaded[name], np.memmap)
        assert loaded[name].dtype == value.dtype
        np.testing.assert_array_equal(loaded[name], value)
