"""Inputs with a default: a value of the user makes them inputs of the functions."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import collage
from collage.entries import ModelEntry
from collage.errors import DimensionError, InputError
from collage.frontend.input_names import InputNames, input_names
from collage.frontend.sample_files import UserSamples
from collage.frontend.samples import named_samples
from collage.options import Options
from collage.pipeline.entry_import import import_entry
from tests.support import original_models

X = np.random.default_rng(1).standard_normal((2, 8)).astype(np.float32)


@pytest.fixture
def scale(tmp_path):
    """`y` is `factor` times Relu of `x`; `factor` has the default 3."""
    return original_models.flushed_scale_model(tmp_path / "scale.onnx")


def imported(file, **options):
    return import_entry(
        ModelEntry("main", file), ["main"], Options(**options), file.parent / "work"
    )


def with_format(file, version):
    """Change the version of the file format."""
    model = onnx.load(file)
    model.ir_version = version
    onnx.save(model, file)
    return file


@pytest.fixture(scope="module")
def taken(tmp_path_factory):
    """A bundle without a fallback whose function takes the factor."""
    folder = tmp_path_factory.mktemp("taken")
    file = original_models.flushed_scale_model(folder / "scale.onnx")
    options = Options(
        backends=("onnxruntime",), threads=1, measure_budget_s=1.0, refine_s=0.0, tune_s=0.0,
        verify_s=0.05, end_to_end_plans=1, cache_dir=folder / "cache", fallback=False,
        allow_slower=True, inputs={"factor": 2.0},
    )  # fmt: skip
    return file, folder / "bundle", collage.compile(file, output=folder / "bundle", options=options)


@pytest.mark.full
def test_the_executable_takes_an_input_with_a_value(taken):
    file, folder, summary = taken
    bundle, original = collage.load(folder), onnxruntime.InferenceSession(file)
    assert not any("constant" in note for note in summary.notes)
    assert bundle.manifest.defaults == {}
    assert [tensor.name for tensor in bundle.signatures[0].inputs] == ["x", "factor"]
    for factor in (None, 2, -1):
        feeds = {"x": X} | ({} if factor is None else {"factor": np.full(1, factor, np.float32)})
        np.testing.assert_allclose(bundle.run(feeds)["y"], original.run(None, feeds)[0], 1e-6)
        np.testing.assert_array_equal(
            bundle.run_tensors(feeds)["y"].numpy(), bundle.run(feeds)["y"]
        )
    assert bundle.dispatch_counts().functions == {"main": 9}
    bundle.check()


@pytest.mark.full
def test_a_copy_has_the_defaults_and_x_has_none(taken):
    bundle = collage.load(taken[1]).copy()
    np.testing.assert_allclose(bundle.run({"x": X})["y"], 3 * np.maximum(X, 0), 1e-6)
    with pytest.raises(InputError, match="missing input 'x'"):
        bundle.run({"factor": np.ones(1, np.float32)})


def test_without_a_value_the_default_is_a_constant(scale):
    model = imported(scale)
    assert model.functions[0].graph.inputs == ("x",)
    assert model.defaults == {}


@pytest.mark.parametrize(
    "options",
    [
        {"inputs": {"factor": 2.0}},
        {"samples": {"x": X, "factor": np.ones(1, np.float32)}},
        {"shapes": ({"factor": (1,)},)},
    ],
)
def test_a_value_or_a_shape_makes_it_an_input(scale, options):
    model = imported(scale, **options)
    assert model.functions[0].graph.inputs == ("x", "factor")
    assert model.defaults["factor"].tolist() == [3]
    assert not model.functions[0].weights


def test_what_a_set_lacks_is_the_default(scale):
    model = imported(scale, samples=({"x": X, "factor": np.full(1, 2, np.float32)}, {"x": X}))
    (function,) = model.functions
    assert [arrays["factor"].tolist() for arrays in function.sample_sets] == [[2], [3]]
    (function,) = imported(scale, shapes=({"factor": (1,)},)).functions
    assert function.settings["factor"].tolist() == [3]


def test_a_default_has_a_shape_that_the_input_allows(scale):
    with pytest.raises(DimensionError, match="dimension 0 of input factor is 1"):
        imported(scale, shapes=({"factor": (4,)},))


def test_weights_of_old_files_are_no_inputs(scale):
    assert input_names(scale) == InputNames(("x",), ("factor",))
    assert input_names(with_format(scale, 3)) == InputNames(("x",))
    with pytest.raises(InputError, match="no such input"):
        imported(scale, inputs={"factor": 2.0})


def test_a_sparse_default_is_an_input_too(tmp_path):
    places = helper.make_tensor("places", TensorProto.INT64, [1], [2])
    sparse = helper.make_sparse_tensor(
        helper.make_tensor("w", TensorProto.FLOAT, [1], [5.0]), places, [4]
    )
    x, w, y = (original_models.tensor(name, TensorProto.FLOAT, [4]) for name in "xwy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [x, w], [y])
    graph.sparse_initializer.append(sparse)
    file = tmp_path / "sparse.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), file)
    assert input_names(file).optional == ("w",)
    model = imported(file, inputs={"w": [1.0, 2.0, 3.0, 4.0]})
    assert model.functions[0].graph.inputs == ("x", "w")
    assert model.defaults["w"].tolist() == [0, 0, 5, 0]


def test_a_lone_array_keeps_the_name_of_a_default():
    names = InputNames(("x",), ("factor",))
    sets = ({"factor": X}, {"photo": X}, {"arr_0": X, "factor": X})
    named = named_samples(UserSamples(sets), names).sets
    assert [list(arrays) for arrays in named] == [["factor"], ["x"], ["arr_0", "factor"]]
