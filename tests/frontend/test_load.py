"""What cannot be used is refused with words that tell what to do."""

import onnx
import pytest
from onnx.helper import make_node as node

from collage.errors import DimensionError, ModelError
from collage.frontend import import_model
from tests.frontend.build import floats, model, save


def test_no_file(tmp_path):
    with pytest.raises(ModelError, match="no such file"):
        import_model(tmp_path / "none.onnx", work_dir=tmp_path / "work")


@pytest.mark.parametrize(
    "content", [b"", b"hello, world", b"\x89PNG\r\n" + bytes(100), bytes(1000)]
)
def test_not_a_model(tmp_path, content):
    (tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(ModelError, match="not an ONNX model"):
        import_model(tmp_path / "model.onnx", work_dir=tmp_path / "work")


def weighted():
    return model([node("MatMul", ["x", "w"], ["y"])], {"x": ("float32", (2, 64))}, ["y"],
                 {"w": floats(64, 64)})  # fmt: skip


def test_truncated(tmp_path):
    path = save(weighted(), tmp_path)
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(ModelError, match="truncated"):
        import_model(path, work_dir=tmp_path / "work")


@pytest.mark.parametrize("damage", ["missing", "short"])
def test_external_data(tmp_path, damage):
    path = tmp_path / "model.onnx"
    onnx.save(weighted(), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    data = tmp_path / "w.bin"
    if damage == "missing":
        data.unlink()
    else:
        data.write_bytes(data.read_bytes()[:100])
    with pytest.raises(ModelError, match="beside"):
        import_model(path, work_dir=tmp_path / "work")


def test_what_onnxruntime_refuses(tmp_path):
    path = save(model([node("NoSuchOp", ["x"], ["y"])], {"x": ("float32", (1,))}, ["y"]), tmp_path)
    with pytest.raises(ModelError, match="NoSuchOp"):
        import_model(path, work_dir=tmp_path / "work")


def dynamic(tmp_path):
    nodes = [node("Concat", ["x", "z"], ["c"], axis=1), node("Relu", ["c"], ["y"])]
    inputs = {
        "x": ("float32", ("batch", 3, None, 4)),
        "z": ("float32", ("batch", "extra", None, 4)),
    }
    return save(model(nodes, inputs, ["y"]), tmp_path)


def test_unbound_dimensions_print_the_option(tmp_path):
    with pytest.raises(DimensionError) as caught:
        import_model(dynamic(tmp_path), work_dir=tmp_path / "work")
    text = str(caught.value)
    for part in ("--shape x=?,3,?,4", "--shape z=?,?,?,4", "--dim batch=...", "--dim extra=..."):
        assert part in text


@pytest.mark.parametrize(
    ("dims", "shape", "message"),
    [
        ({"height": 1}, {}, "no dimension named 'height'; named dimensions: batch, extra"),
        ({}, {"q": (1,)}, "no input 'q'; inputs: x, z"),
        ({}, {"x": (1, 3, 4)}, r"has 4 dimensions \(batch,3,\?,4\)"),
        ({}, {"x": (1, 2, 5, 4)}, "dimension 1 of input x is 3 in the model, but was given as 2"),
        ({"batch": 2}, {"x": (1, 3, 5, 4)}, "batch is bound to 2 and to 1"),
        ({"batch": -1}, {}, "must not be negative: -1"),
        ({"batch": 10**20}, {}, "dimension batch must be at most 2147483647"),
        ({}, {"x": (1, 3, -1, 4)}, "must not be negative"),
        ({"batch": 1}, {"x": (1, 3, 5, 4)}, "--shape z=1"),
    ],
)
def test_wrong_dimensions(tmp_path, dims, shape, message):
    with pytest.raises(DimensionError, match=message):
        import_model(dynamic(tmp_path), dims=dims, shapes=[shape], work_dir=tmp_path / "work")


def test_shape_sets_become_functions(tmp_path):
    shapes = [
        {"x": (1, 3, size, 4), "z": (1, 2, size, 4)}
        for size in (5, 7)
    ]  # fmt: skip
    imported = import_model(dynamic(tmp_path), shapes=shapes, work_dir=tmp_path / "work")
    assert [function.name for function in imported.functions] == ["main", "main_1"]
    assert [function.graph.types["y"].shape for function in imported.functions] == [
        (1, 5, 5, 4),
        (1, 5, 7, 4),
    ]


def imported_pair(tmp_path, dimension, shapes, dims):
    nodes = [node("ReduceSum", ["x"], ["a"]), node("ReduceSum", ["z"], ["b"])]
    inputs = {"x": ("float32", (dimension, 3)), "z": ("float32", (dimension, dimension))}
    path = save(model([*nodes, node("Add", ["a", "b"], ["y"])], inputs, ["y"]), tmp_path)
    return import_model(path, dims=dims, shapes=[shapes], work_dir=tmp_path / "work")


@pytest.mark.parametrize("dimension", ["None", "null", "*", "?", "", "-1"])
def test_placeholders_of_exporters_name_no_dimension(tmp_path, dimension):
    imported = imported_pair(tmp_path, dimension, {"x": (2, 3), "z": (4, 5)}, {})
    assert imported.functions[0].graph.types["z"].shape == (4, 5)
    assert not imported.notes


def test_one_name_may_have_several_sizes(tmp_path):
    imported = imported_pair(tmp_path, "n", {"x": (2, 3), "z": (4, 2)}, {})
    assert imported.functions[0].graph.types["x"].shape == (2, 3)
    assert imported.notes == ("dimension n has several sizes: 2, 4",)


def test_a_name_with_several_sizes_binds_nothing_else(tmp_path):
    with pytest.raises(DimensionError, match=r"--shape x=\?,3"):
        imported_pair(tmp_path, "n", {"z": (4, 2)}, {})
    with pytest.raises(DimensionError, match="n is bound to 4 and to 2"):
        imported_pair(tmp_path, "n", {"z": (4, 2)}, {"n": 4})


def test_a_dimension_may_be_empty(tmp_path):
    imported = imported_pair(tmp_path, "n", {"x": (0, 3), "z": (4, 0)}, {})
    assert imported.functions[0].graph.types["x"].shape == (0, 3)


def test_one_shape_binds_the_dimension_of_other_inputs(tmp_path):
    nodes = [node("Add", ["x", "z"], ["y"])]
    inputs = {"x": ("float32", ("n", 3)), "z": ("float32", ("n", 3))}
    path = save(model(nodes, inputs, ["y"]), tmp_path)
    imported = import_model(path, shapes=[{"x": (4, 3)}], work_dir=tmp_path / "work")
    assert imported.functions[0].graph.types["z"].shape == (4, 3)
