"""Inputs are valid and repeatable; the reference survives the disk."""

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper
from onnx.helper import make_graph, make_tensor_value_info
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


def ranged(nodes, inputs, tmp_path, weights=None, outputs=("y",)):
    """Return the generated inputs of a model."""
    return random_inputs(imported(model(nodes, inputs, list(outputs), weights), tmp_path), 0)


def test_clip_states_the_range_of_floats_and_integers(tmp_path):
    inputs = ranged(
        [
            node("Clip", ["x", "low", "high"], ["a"]),
            node("Clip", ["i", "one", "three"], ["b"]),
            node("Cast", ["b"], ["c"], to=TensorProto.FLOAT),
            node("Add", ["a", "c"], ["y"]),
        ],
        {"x": ("float32", (4, 99)), "i": ("int64", (4, 99))},
        tmp_path,
        {
            "low": np.float32(10), "high": np.float32(200),
            "one": np.int64(1), "three": np.int64(3),
        },
    )  # fmt: skip
    assert 10 <= inputs["x"].min() < 50 < 150 < inputs["x"].max() <= 200
    assert (inputs["i"].min(), inputs["i"].max()) == (1, 3)


def branches(condition, then, otherwise):
    """Return an If whose branches make constants of these shapes."""
    bodies = {
        name: make_graph(
            [node("ConstantOfShape", ["size"], ["out"])],
            name,
            [],
            [make_tensor_value_info("out", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(integers(*shape), "size")],
        )
        for name, shape in (("then_branch", then), ("else_branch", otherwise))
    }
    return node("If", [condition], ["chosen"], **bodies)


def test_a_scalar_is_a_constant_it_is_compared_with(tmp_path):
    """Of the two rates, ONNX Runtime accepts only the second."""
    inputs = ranged(
        [
            node("Equal", ["sr", "low_rate"], ["is_low"]),
            node("Equal", ["sr", "high_rate"], ["is_high"]),
            branches("is_high", (3,), (5,)),
            node("Add", ["x", "chosen"], ["sum"]),
            node("Cast", ["is_low"], ["flag"], to=TensorProto.FLOAT),
            node("Add", ["sum", "flag"], ["y"]),
        ],
        {"x": ("float32", (3,)), "sr": ("int64", ())},
        tmp_path,
        {"low_rate": np.int64(8000), "high_rate": np.int64(16000)},
    )
    assert int(inputs["sr"]) == 16000


def test_loops_turn_and_divisors_are_not_zero(tmp_path):
    body = make_graph(
        [node("Identity", ["go"], ["on"]), node("Identity", ["state"], ["next"])],
        "body",
        [
            make_tensor_value_info("i", TensorProto.INT64, []),
            make_tensor_value_info("go", TensorProto.BOOL, []),
            make_tensor_value_info("state", TensorProto.INT64, [200]),
        ],
        [
            make_tensor_value_info("on", TensorProto.BOOL, []),
            make_tensor_value_info("next", TensorProto.INT64, [200]),
        ],
    )
    inputs = ranged(
        [
            node("Div", ["x", "by"], ["quotient"]),
            node("Loop", ["trips", "", "quotient"], ["y"], body=body),
        ],
        {"x": ("int64", (200,)), "by": ("int64", (200,)), "trips": ("int64", ())},
        tmp_path,
    )
    assert inputs["by"].min() == 1
    assert inputs["trips"] >= 1


def test_a_comparison_bounds_scalars_only(tmp_path):
    inputs = ranged(
        [
            node("Less", ["ids", "zero"], ["negative"]),
            node("Add", ["ids", "size"], ["wrapped"]),
            node("Where", ["negative", "wrapped", "ids"], ["places"]),
            node("Gather", ["table", "places"], ["rows"]),
            node("Greater", ["level", "three"], ["above"]),
            node("Cast", ["above"], ["flag"], to=TensorProto.FLOAT),
            node("Mul", ["rows", "flag"], ["y"]),
        ],
        {"ids": ("int64", (300,)), "level": ("int64", ())},
        tmp_path,
        {
            "zero": np.int64(0), "size": np.int64(30), "three": np.int64(3), "table": floats(30, 2),
        },
    )  # fmt: skip
    assert (inputs["ids"].min(), inputs["ids"].max()) == (0, 29)
    assert inputs["level"] >= 4


def test_a_mask_that_hides_where_true_is_zeros(tmp_path):
    inputs = ranged(
        [
            node("Where", ["key_padding_mask", "nothing", "x"], ["logits"]),
            node("Softmax", ["logits"], ["y"], axis=-1),
        ],
        {"key_padding_mask": ("bool", (2, 6)), "x": ("float32", (2, 6))},
        tmp_path,
        {"nothing": np.float32(-np.inf)},
    )
    assert not inputs["key_padding_mask"].any()


@pytest.mark.parametrize(
    ("operator", "operands", "attributes", "shape"),
    [
        ("Reshape", ["x", "setting"], {}, (2,)),
        ("Resize", ["x", "", "", "setting"], {}, (2,)),
        ("ReduceMean", ["x", "setting"], {"keepdims": 1}, (1,)),
        ("Unsqueeze", ["x", "setting"], {}, (1,)),
        ("CumSum", ["x", "setting"], {}, ()),
    ],
)
def test_a_setting_without_a_value_is_named(tmp_path, operator, operands, attributes, shape):
    document = model(
        [node("Identity", ["given"], ["setting"]), node(operator, operands, ["y"], **attributes)],
        {"x": ("float32", (2, 6)), "given": ("int64", shape)},
        ["y"],
    )
    function = imported(document, tmp_path)
    written = f"int64[{','.join(map(str, shape))}]"
    reason = (
        f"the input given ({written}) is a setting of {operator}.*--input given=VALUE.*--samples"
    )
    with pytest.raises(
        ModelError, match=reason.replace("(", r"\(").replace(")", r"\)").replace("[", r"\[")
    ):
        random_inputs(function, 0)


def test_a_refusal_names_the_inputs_it_depends_on(tmp_path):
    document = model(
        [
            node("Add", ["i", "far"], ["j"], name="shift"),
            node("Gather", ["w", "j"], ["rows"], name="look up"),
            node("Neg", ["k"], ["n"], name="negate"),
        ],
        {"i": ("int64", (4,)), "k": ("int64", (4,))},
        ["rows", "n"],
        {"w": floats(3, 2), "far": integers(100)},
    )
    function = imported(document, tmp_path)
    with pytest.raises(ModelError) as refusal:
        reference_values(function, random_inputs(function, 0))
    assert "depends on i (int64[4]): add --input i=VALUE, or real inputs with --samples" in str(
        refusal.value
    )


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
