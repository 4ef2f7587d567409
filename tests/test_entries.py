"""Names of entries, and the part of the options that is each entry's own."""

import pytest

from collage.entries import (
    bundle_functions,
    entry_of,
    find_entries,
    options_of,
    require_used_dims,
    shared_dims,
)
from collage.errors import DimensionError, ModelError, OptionError
from collage.options import Options

NAMES = ("encoder", "decoder")


@pytest.fixture
def folder(tmp_path):
    for name in ("encoder.onnx", "decoder.onnx", "decoder.onnx.data", "readme.txt"):
        (tmp_path / name).touch()
    return tmp_path


def names(models):
    return [entry.name for entry in find_entries(models)]


def test_entries_are_called_as_their_files_or_as_chosen(folder):
    encoder, decoder = folder / "encoder.onnx", folder / "decoder.onnx"
    assert names(encoder) == names([encoder]) == ["main"]
    assert names(f"enc={encoder}") == ["enc"]
    assert names([encoder, f"dec={decoder}"]) == ["encoder", "dec"]
    assert names({"b": encoder, "a": decoder}) == ["b", "a"]


def test_a_folder_stands_for_its_onnx_files(folder, tmp_path):
    assert names(folder) == ["decoder", "encoder"]
    assert [entry.path for entry in find_entries(folder)] == [
        folder / "decoder.onnx", folder / "encoder.onnx",
    ]  # fmt: skip
    (folder / "a=b.onnx").touch()
    (entry,) = find_entries(str(folder / "a=b.onnx"))
    assert (entry.name, entry.path) == ("main", folder / "a=b.onnx"), "a file's own name"


REFUSED = [
    (["a/x.onnx", "b/x.onnx"], "2 entries are called 'x'"),
    (["a-b.onnx", "a.b.onnx"], "would have a function a_b each"),
    (["x.onnx", "x_on_device.onnx"], "would have a function x_on_device each"),
    (["große datei.onnx", "x.onnx"], "cannot name an entry"),
    ([".hidden=x.onnx"], "cannot name an entry"),
    (["collage_x=x.onnx"], "cannot name an entry"),
    ([], "no model"),
]


@pytest.mark.parametrize(("models", "message"), REFUSED)
def test_names_that_are_invalid_or_equal_are_refused(models, message):
    with pytest.raises(OptionError, match=message):
        find_entries(models)


def test_a_folder_without_a_model_is_refused(tmp_path, folder):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=r"has no file \*\.onnx"):
        find_entries(tmp_path / "empty")
    with pytest.raises(OptionError, match="names 2 files: name each one"):
        find_entries(f"x={folder}")


def test_each_entry_has_its_own_shape_sets_and_dimensions():
    options = Options(
        dims={"batch": 1, "decoder/past": 7},
        shapes=({"encoder/x": (1, 3), "decoder/y": (1,)}, {"encoder/x": (1, 5)}),
    )
    encoder, decoder = (options_of(options, name, NAMES) for name in NAMES)
    assert encoder.shapes == ({"x": (1, 3)}, {"x": (1, 5)})
    assert decoder.shapes == ({"y": (1,)},)
    assert (encoder.dims, decoder.dims) == ({"batch": 1}, {"batch": 1, "past": 7})
    assert shared_dims(options, NAMES) == {"batch"}
    assert bundle_functions(options, NAMES) == ("encoder", "encoder_1", "decoder")


def test_the_only_entry_needs_no_name_in_options():
    options = Options(dims={"a/b": 1}, shapes=({"main/x": (1,)},))
    assert options_of(options, "main", ("main",)) is options
    for name in ("x", "enc/x"):
        own = options_of(Options(shapes=({name: (1,)},)), "enc", ("enc",))
        assert own.shapes == ({"x": (1,)},)
    assert shared_dims(options, ("main",)) == frozenset()


def test_an_input_names_its_entry_where_there_are_several():
    options = Options(shapes=({"x": (1, 3)},))
    with pytest.raises(OptionError, match="say whose input 'x' is, encoder/x or decoder/x"):
        options_of(options, "encoder", NAMES)


def test_each_entry_has_its_own_inputs_and_samples(tmp_path):
    for path in (tmp_path / "encoder", tmp_path / "all" / "decoder"):
        path.mkdir(parents=True)
    (tmp_path / "decoder.npz").touch()
    arrays = {"encoder/x": [1.0], "decoder/y": [2.0]}
    options = Options(
        inputs={"decoder/rate": 8},
        samples=(tmp_path, arrays, tmp_path / "all", {"decoder/y": [3.0]}),
    )
    encoder, decoder = (options_of(options, name, NAMES) for name in NAMES)
    assert (encoder.inputs, decoder.inputs) == ({}, {"rate": 8})
    assert encoder.samples == (tmp_path / "encoder", {"x": [1.0]})
    assert decoder.samples == (
        tmp_path / "decoder.npz", {"y": [2.0]}, tmp_path / "all" / "decoder", {"y": [3.0]},
    )  # fmt: skip
    (tmp_path / "other").mkdir()
    with pytest.raises(OptionError, match=r"give a folder with a folder, or an \.npz file"):
        options_of(Options(samples=tmp_path / "other"), "encoder", NAMES)
    assert options_of(Options(samples=tmp_path), "e", ("e",)).samples == (tmp_path,)


def test_functions_of_two_entries_differ():
    shapes = tuple({"a/x": (size,)} for size in (1, 2))
    with pytest.raises(OptionError, match="'a' and 'a_1' would have a function a_1 each"):
        bundle_functions(Options(shapes=shapes), ("a", "a_1"))


def test_the_entry_of_a_function():
    entries = find_entries(["encoder.onnx", "decoder.onnx"])
    options = Options(shapes=({"decoder/x": (1,)}, {"decoder/x": (2,)}))
    assert [entry_of(name, entries, options).name for name in ("encoder", "decoder_1")] == [
        "encoder", "decoder",
    ]  # fmt: skip
    with pytest.raises(OptionError, match="'main', only encoder, decoder, decoder_1"):
        entry_of("main", entries, options)


def test_a_dimension_of_no_entry_is_refused():
    require_used_dims([{"past"}, set()])
    with pytest.raises(DimensionError, match="no entry has a dimension named n"):
        require_used_dims([{"n"}, {"n", "past"}])
