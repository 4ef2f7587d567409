"""The user's samples: files, shapes and types of a function's inputs, and the identity of costs."""

import numpy as np
import pytest
from onnx import TensorProto
from onnx.helper import make_graph, make_tensor_value_info
from onnx.helper import make_node as node

from collage.errors import DimensionError, OptionError
from collage.frontend import import_model
from collage.frontend.inputs import complete_inputs, input_sets, more_inputs, random_inputs
from collage.frontend.region import region_digest
from collage.frontend.sample_files import UserSamples, read_samples
from collage.frontend.samples import converted, shape_sets, with_samples
from collage.graph.dataflow import TensorType
from tests.frontend.build import floats, integers, model, save

X = floats(2, 3)


def read(*sources, **inputs):
    return read_samples(sources, inputs)


def imported_with(samples, document, folder, **bound):
    """Import a model as a compile with these samples does."""
    shapes = shape_sets(samples, bound.pop("shapes", ()))
    imported = import_model(
        save(document, folder), shapes=shapes, work_dir=folder / "work", **bound
    )
    return with_samples(imported, samples)


def gather():
    """Return a model with two inputs: indices of any shape, and a factor."""
    return model(
        [node("Gather", ["table", "ids"], ["rows"]), node("Mul", ["rows", "factor"], ["y"])],
        {"ids": ("int64", ("batch", "length")), "factor": ("float32", ())},
        ["y"],
        {"table": floats(40, 4)},
    )


def test_a_folder_holds_sets_as_files_and_as_folders(tmp_path):
    (tmp_path / "deep").mkdir()
    np.savez(tmp_path / "b.npz", x=X)
    np.savez(tmp_path / "a.npz", x=X + 1)
    np.save(tmp_path / "x.npy", X + 2)
    np.save(tmp_path / "deep" / "x.npy", X + 3)
    samples = read(tmp_path)
    assert [float(arrays["x"][0, 0] - X[0, 0]) for arrays in samples.sets] == pytest.approx(
        [2, 1, 0, 3]
    )


def test_npy_files_of_one_call_are_one_set(tmp_path):
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", X)
    (arrays,) = read(tmp_path / "x.npy", tmp_path / "y.npy").sets
    assert set(arrays) == {"x", "y"}


def test_names_in_npz_files_may_hold_slashes(tmp_path):
    np.savez(tmp_path / "a.npz", **{"encoder/ids": X})
    assert set(read(tmp_path / "a.npz").sets[0]) == {"encoder/ids"}


def test_files_of_inputs_join_every_set_and_literals_do_not(tmp_path):
    np.save(tmp_path / "m.npy", X)
    samples = read_samples([{"x": X}, {"x": X}], {"m": tmp_path / "m.npy", "sr": 16000})
    assert [set(arrays) for arrays in samples.sets] == [{"x", "m"}, {"x", "m"}]
    assert {name: int(value) for name, value in samples.settings.items()} == {"sr": 16000}


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("absent.npz", None, "no .npz file: No such file"),
        ("absent", None, "no such file"),
        ("text.txt", b"hello", "give .npz or .npy files"),
        ("bad.npz", b"hello", "no .npz file"),
        ("bad.npy", b"hello", "no .npy file"),
    ],
)
def test_a_damaged_sample_is_refused_with_its_reason(tmp_path, name, content, reason):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(OptionError, match=reason):
        read(tmp_path / name)


def test_pickled_arrays_are_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.array([{}], object))
    np.savez(tmp_path / "x.npz", x=np.array([{}], object))
    for file in ("x.npy", "x.npz"):
        with pytest.raises(OptionError, match=r"no \.np"):
            read(tmp_path / file)


def test_a_sample_beyond_the_memory_limit_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setenv("COLLAGE_IMPORT_MEMORY", "1M")
    np.savez_compressed(tmp_path / "x.npz", x=np.zeros(1 << 20))
    with pytest.raises(OptionError, match="COLLAGE_IMPORT_MEMORY"):
        read(tmp_path / "x.npz")


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(OptionError, match=r"holds no \.npz"):
        read(tmp_path)


def test_sets_with_other_shapes_become_functions(tmp_path):
    ids = [np.zeros(shape, np.int64) for shape in ((1, 8), (2, 5), (1, 8))]
    samples = read_samples([{"ids": value} for value in ids], {})
    functions = imported_with(samples, gather(), tmp_path).functions
    assert [function.type_of("ids").shape for function in functions] == [(1, 8), (2, 5)]
    assert [len(function.sample_sets) for function in functions] == [2, 1]


def test_sets_of_different_inputs_with_equal_shapes_are_one_function():
    x, y = np.zeros((1, 2)), np.zeros(3)
    samples = UserSamples(({"x": x}, {"x": x, "y": y}))
    assert shape_sets(samples, ()) == ({"x": (1, 2), "y": (3,)},)


def test_written_shapes_precede_those_of_samples(tmp_path):
    samples = read({"ids": np.zeros((1, 8), np.int64)})
    with pytest.raises(OptionError, match=r"sample set 1 .*ids \[1, 8\].*ids is \[1, 4\] in main"):
        imported_with(samples, gather(), tmp_path, shapes=[{"ids": (1, 4)}])


def test_samples_bind_what_written_shapes_leave_open():
    x, y = np.zeros((1, 2)), np.zeros(3)
    samples = UserSamples(({"x": x, "y": y}, {"x": x, "y": np.zeros(4)}))
    assert shape_sets(samples, [{"x": (1, 2)}]) == (
        {"x": (1, 2), "y": (3,)}, {"x": (1, 2), "y": (4,)}
    )  # fmt: skip
    assert shape_sets(samples, [{"x": (7, 2)}]) == ({"x": (7, 2)},)


def test_an_unknown_input_is_named(tmp_path):
    with pytest.raises(DimensionError, match="no input 'idz'; inputs: factor, ids"):
        imported_with(read({"idz": np.zeros((1, 8))}), gather(), tmp_path)
    with pytest.raises(OptionError, match=r"'sr'.*its inputs are ids, factor"):
        imported_with(read({"ids": np.zeros((1, 8), int)}, sr=1), gather(), tmp_path)


@pytest.mark.parametrize(
    ("value", "dtype", "shape"),
    [
        (16000, "int64", ()),
        (16000, "int32", (1,)),
        (2, "float32", (2, 2)),
        ([1, 0], "bool", (2,)),
        (np.float64(0.1), "float32", ()),
        ([[7]], "int8", (1,)),
    ],
)
def test_values_are_converted_to_the_inputs_types(value, dtype, shape):
    result = converted("x", np.asarray(value), TensorType(shape, dtype))
    assert (result.dtype.name, result.shape) == (dtype, shape)
    assert result.flags.c_contiguous
    np.testing.assert_allclose(
        result.astype(float), np.broadcast_to(np.reshape(value, -1), shape or 1)
    )


@pytest.mark.parametrize(
    ("value", "dtype", "reason"),
    [
        (0.5, "int64", "floats are no integers"),
        (300, "uint8", "out of range"),
        (-1, "uint32", "out of range"),
        (2, "bool", "out of range"),
        ("a", "float32", "texts and numbers"),
        ([1, 2], "int64", r"shape \[2\], and the input \[\]"),
    ],
)
def test_a_value_that_would_be_lost_is_refused(value, dtype, reason):
    with pytest.raises(OptionError, match=reason):
        converted("x", np.asarray(value), TensorType((), dtype))


def test_inputs_without_a_value_are_generated(tmp_path):
    ids = np.full((1, 8), 39)
    model_with = imported_with(read({"ids": ids}, factor=3), gather(), tmp_path)
    (inputs,) = input_sets(model_with.functions[0], 0)
    assert (inputs["ids"] == 39).all()
    assert float(inputs["factor"]) == 3
    assert more_inputs(model_with.functions[0], range(3)) == []
    partial = imported_with(read({"ids": ids}), gather(), tmp_path).functions[0]
    drawn = {float(inputs["factor"]) for inputs in more_inputs(partial, range(3))}
    assert len(drawn) == 3
    assert list(complete_inputs(partial, {}, 0)) == ["ids", "factor"]


def test_generated_inputs_keep_the_settings(tmp_path):
    samples = read({"ids": np.full((1, 8), 39)}, factor=3)
    inputs = random_inputs(imported_with(samples, gather(), tmp_path).functions[0], 0)
    assert float(inputs["factor"]) == 3
    assert not (inputs["ids"] == 39).all()


def loop():
    """Return a model with a product, and a loop with a trip count at an input."""
    body = make_graph(
        [node("Add", ["state", "one"], ["next"]), node("Identity", ["go"], ["on"])],
        "body",
        [
            make_tensor_value_info("i", TensorProto.INT64, []),
            make_tensor_value_info("go", TensorProto.BOOL, []),
            make_tensor_value_info("state", TensorProto.FLOAT, [1, 4]),
        ],
        [
            make_tensor_value_info("on", TensorProto.BOOL, []),
            make_tensor_value_info("next", TensorProto.FLOAT, [1, 4]),
        ],
    )
    return model(
        [
            node("MatMul", ["x", "w"], ["start"]),
            node("Loop", ["trips", "", "start"], ["y"], body=body),
        ],
        {"x": ("float32", (1, 4)), "trips": ("int64", ())},
        ["y"],
        {"w": floats(4, 4), "one": np.float32([1])},
    )


def test_only_costs_that_depend_on_values_are_the_samples(tmp_path):
    few, many, none = (
        imported_with(samples, loop(), tmp_path).functions[0]
        for samples in (read(trips=2), read(trips=40), read())
    )
    product, repeated, whole = 1, 2, 3
    assert len({region_digest(function, product) for function in (few, many, none)}) == 1
    assert len({region_digest(function, repeated) for function in (few, many, none)}) == 3
    assert len({region_digest(function, whole) for function in (few, many, none)}) == 3


def test_shapes_computed_from_values_make_costs_the_samples(tmp_path):
    document = model(
        [node("Relu", ["x"], ["r"]), node("Reshape", ["r", "shape"], ["y"])],
        {"x": ("float32", (2, 6)), "shape": ("int64", (2,))},
        ["y"],
    )
    wide, tall = (
        imported_with(read(shape=list(shape)), document, tmp_path).functions[0]
        for shape in ((1, 12), (12, 1))
    )
    assert region_digest(wide, 1) == region_digest(tall, 1)
    assert region_digest(wide, 2) != region_digest(tall, 2)


def test_axes_from_an_input_leave_the_shape_open(tmp_path):
    document = model(
        [node("ReduceSum", ["x", "axis"], ["y"], keepdims=1), node("Relu", ["y"], ["z"])],
        {"x": ("float32", (2, 6)), "axis": ("int64", (1,))},
        ["z"],
        {"unused": integers(1)},
    )
    function = imported_with(read(axis=[1]), document, tmp_path).functions[0]
    assert "y" not in function.graph.types
    assert "z" not in function.graph.types
