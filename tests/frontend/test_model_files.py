"""External data comes from the model's own folder, and what was checked is what is read."""

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.helper import make_node as node

from collage.errors import ModelError, StoreError
from collage.frontend import import_model, model_files
from collage.frontend.model_files import external_names, open_model
from collage.pipeline.request import fetch_models, submit
from collage.store import open_store

SECRET = np.arange(4, dtype=np.float32)


def external(location, *, offset=None, length=None, name="w"):
    tensor = TensorProto(name=name, dims=[4], data_type=TensorProto.FLOAT)
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    for key, value in (("offset", offset), ("length", length)):
        if value is not None:
            tensor.external_data.add(key=key, value=str(value))
    return tensor


def adding(tensor, folder: Path) -> Path:
    """Write a model that adds a tensor of four floats."""
    floats = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy"]
    graph = helper.make_graph(
        [node("Add", ["x", "w"], ["y"])], "g", floats[:1], floats[1:], [tensor]
    )
    return written(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), folder
    )


def written(model, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.fixture
def folder(tmp_path):
    """A folder for a model, beside a secret that it may want."""
    (tmp_path / "secret").write_bytes(SECRET.tobytes())
    (tmp_path / "model" / "sub").mkdir(parents=True)
    return tmp_path / "model"


def blobs(store):
    return list(store.entries("blobs/"))


@pytest.mark.parametrize(
    "location",
    [
        "../secret",
        "sub/../../secret",
        "/proc/self/environ",
        "../../../proc/self/environ",
        "..",
        "w\0",
    ],
)
def test_a_location_outside_of_the_folder_is_refused(folder, tmp_path, location):
    path, store = adding(external(location), folder), open_store(str(tmp_path / "store"))
    for use in (lambda: submit(store, path), lambda: external_names(path), lambda: imported(path)):
        with pytest.raises(ModelError, match="outside of the model's folder"):
            use()
    assert not blobs(store)


def imported(path: Path):
    return import_model(path, work_dir=path.parent.parent / "work")


def link_out(place: Path):
    place.symlink_to("../secret")


def link_of_folder(place: Path):
    place.symlink_to(place.parent.parent)


@pytest.mark.parametrize(
    ("location", "make", "words"),
    [
        ("w", link_out, "outside"),
        ("w", lambda place: place.symlink_to("/proc/self/environ"), "outside"),
        ("w", lambda place: place.symlink_to("/dev/zero"), "outside"),
        ("w", os.mkfifo, "no regular file"),
        ("w", os.mkdir, "no regular file"),
        ("w", lambda place: place.symlink_to("w"), "cannot be read"),
        ("up/secret", lambda place: link_of_folder(place.parent), "outside"),
    ],
)
def test_what_is_no_file_of_the_folder_is_refused(folder, tmp_path, location, make, words):
    path, store = adding(external(location), folder), open_store(str(tmp_path / "store"))
    make(folder / location)
    for use in (lambda: submit(store, path), lambda: imported(path)):
        with pytest.raises(ModelError, match=words):
            use()
    assert not blobs(store)


def in_a_body(tensor):
    body = helper.make_graph(
        [node("Identity", ["w"], ["r"])], "b", [], [onnx.ValueInfoProto(name="r")]
    )
    body.initializer.append(tensor)
    return node("If", ["c"], ["y"], then_branch=body, else_branch=body)


def in_a_function(tensor):
    inner = node("Constant", [], ["r"], value=tensor)
    return helper.make_function("own", "F", [], ["r"], [inner], [helper.make_opsetid("", 17)])


def sparse(tensor):
    indices = numpy_helper.from_array(np.arange(4), "i")
    sparse_tensor = onnx.SparseTensorProto(dims=[8], indices=indices)
    sparse_tensor.values.CopyFrom(tensor)
    return sparse_tensor


PLACES = {
    "attribute": lambda graph, model, tensor: graph.node.append(
        node("Constant", [], ["y"], value=tensor)
    ),
    "body": lambda graph, model, tensor: graph.node.append(in_a_body(tensor)),
    "function": lambda graph, model, tensor: model.functions.append(in_a_function(tensor)),
    "sparse": lambda graph, model, tensor: graph.sparse_initializer.append(sparse(tensor)),
    "training": lambda graph, model, tensor: (
        model.training_info.add().initialization.initializer.append(tensor)
    ),
}


@pytest.mark.parametrize("place", PLACES)
def test_external_data_is_found_wherever_it_hides(folder, place):
    model = helper.make_model(helper.make_graph([node("Relu", ["x"], ["z"])], "g", [], []))
    PLACES[place](model.graph, model, external("../secret"))
    with pytest.raises(ModelError, match="outside of the model's folder"):
        external_names(written(model, folder))


@pytest.mark.parametrize(
    ("offset", "length", "words"),
    [
        (8, 16, "complete"),
        (1 << 40, 16, "complete"),
        (0, 1 << 40, "needs 16"),
        (0, 8, "needs 16"),
        (-4, 16, "no number"),
        ("1e3", 16, "no number"),
        ("9" * 30, 16, "no number"),
    ],
)
def test_data_beyond_the_file_is_refused(folder, offset, length, words):
    (folder / "w").write_bytes(SECRET.tobytes())
    path = adding(external("w", offset=offset, length=length), folder)
    with pytest.raises(ModelError, match=words), open_model(path):
        pass


@pytest.mark.parametrize("name", ["model.onnx_data", "sub/part 1.bin"])
def test_a_snapshot_of_links_is_read_and_submitted(tmp_path, name):
    snapshot, blobs = tmp_path / "models--a--b/snapshots/1f3a", tmp_path / "models--a--b/blobs"
    blobs.mkdir(parents=True)
    path = adding(external(name), snapshot / "onnx")
    path.rename(blobs / "m")
    path.symlink_to("../../../blobs/m")
    (blobs / "d").write_bytes(SECRET.tobytes())
    (snapshot / "onnx" / name).parent.mkdir(exist_ok=True)
    (snapshot / "onnx" / name).symlink_to(blobs / "d")
    [weight] = imported(path).functions[0].weights.values()
    np.testing.assert_array_equal(weight, SECRET)
    store = open_store(str(tmp_path / "store"))
    request = submit(store, path)
    fetched = fetch_models(store, request, tmp_path / "fetched")[0].path
    assert (fetched.parent / name).read_bytes() == SECRET.tobytes()


@pytest.mark.parametrize("link", ["blobs", "snapshots/1f3a"])
def test_a_snapshot_that_is_a_link_widens_nothing(tmp_path, link):
    (tmp_path / "secret").write_bytes(SECRET.tobytes())
    (tmp_path / "real").mkdir()
    repository = tmp_path / "models--a--b"
    (repository / "snapshots").mkdir(parents=True)
    for folder in ("blobs", "snapshots/1f3a"):
        if folder == link:
            (repository / folder).symlink_to(tmp_path if folder == "blobs" else tmp_path / "real")
        else:
            (repository / folder).mkdir()
    path = adding(external("w"), repository / "snapshots/1f3a")
    (path.parent / "w").symlink_to(tmp_path / "secret")
    with pytest.raises(ModelError, match="outside"), open_model(path):
        pass


def test_a_file_swapped_after_the_check_is_not_read(folder, tmp_path):
    (folder / "w").write_bytes(np.zeros(4, np.float32).tobytes())
    path = adding(external("w"), folder)
    with open_model(path) as files:
        (folder / "w").unlink()
        (folder / "w").symlink_to(tmp_path / "secret")
        model = onnx.load_model_from_string(files.data)
        files.fill(model)
        assert files.external["w"].path.read_bytes() == bytes(16)
    assert model.graph.initializer[0].raw_data == bytes(16)


def test_a_file_swapped_during_the_check_is_not_opened(folder, tmp_path, monkeypatch):
    (folder / "w").write_bytes(bytes(16))
    path, resolve = adding(external("w"), folder), os.path.realpath

    def late(place):
        resolved = resolve(place)
        if str(place).endswith("/w"):
            (folder / "w").unlink()
            (folder / "w").symlink_to(tmp_path / "secret")
        return resolved

    monkeypatch.setattr(model_files.os.path, "realpath", late)
    with pytest.raises(ModelError, match="cannot be read"), open_model(path):
        pass


def test_a_model_that_is_no_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(ModelError, match="no regular file"), open_model(path):
            pass


@pytest.mark.parametrize("name", ["../evil", "/evil", "sub/../../evil", "sub/../model.onnx", ""])
def test_a_request_with_such_a_name_writes_nothing(folder, tmp_path, name):
    store = open_store(str(tmp_path / "store"))
    (folder / "w").write_bytes(SECRET.tobytes())
    request = submit(store, adding(external("w"), folder))
    (requested,) = request.models
    requested = requested.model_copy(update={"external": {name: requested.external["w"]}})
    evil = request.model_copy(update={"models": (requested,)})
    with pytest.raises(StoreError, match="outside"):
        fetch_models(store, evil, tmp_path / "fetched")
    fetched = [file for file in (tmp_path / "fetched").rglob("*") if file.is_file()]
    assert [file.name for file in fetched] == ["model.onnx"]
