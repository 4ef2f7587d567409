"""A compile with the user's samples: measured, judged and kept with them, and nowhere else."""

import json

import numpy as np
import onnxruntime
import pytest
from onnx.helper import make_node as node

import collage
from collage.cli import main
from collage.errors import ModelError
from tests.frontend.build import floats, model, save

SECRET = 77123456789


def options(folder, **more):
    return collage.Options(
        threads=1, workers=1, cache_dir=folder / "store", backends=("onnxruntime", "tvm"),
        measure_budget_s=5.0, refine_s=0.0, tune_s=0.0, verify_s=0.05, allow_slower=True, **more,
    )  # fmt: skip


def reshaping():
    """Return a model whose shape is an input: no generated value fits."""
    return model(
        [
            node("MatMul", ["x", "w"], ["a"]),
            node("Relu", ["a"], ["b"]),
            node("Reshape", ["b", "shape"], ["y"]),
        ],
        {"x": ("float32", ("rows", 8)), "shape": ("int64", (2,))},
        ["y"],
        {"w": floats(8, 8)},
    )


def original(path, feed):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, feed)[0]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A bundle of two shape sets from three sample sets, with an input that is a setting."""
    folder = tmp_path_factory.mktemp("samples")
    path = save(reshaping(), folder)
    feeds = [floats(rows, 8, seed=rows + count) for rows, count in ((3, 0), (3, 1), (6, 0))]
    for number, x in enumerate(feeds):
        np.savez(folder / f"{number}.npz", x=x)
    files = [folder / f"{number}.npz" for number in range(3)]
    chosen = options(folder, samples=files, inputs={"shape": [2, -1]})
    return path, feeds, folder / "bundle", collage.compile(path, chosen, output=folder / "bundle")


def test_shapes_and_golden_data_are_the_samples(compiled):
    path, feeds, bundle, summary = compiled
    assert [function.function for function in summary.functions] == ["main", "main_1"]
    with np.load(bundle / "golden.npz") as golden:
        np.testing.assert_array_equal(golden["main/input/x"], feeds[0])
        np.testing.assert_array_equal(golden["main_1/input/x"], feeds[2])
        assert golden["main/input/shape"].tolist() == [2, -1]
    loaded = collage.load(bundle)
    loaded.check()
    for x, shape in ((feeds[1], [24, 1]), (feeds[2], [-1, 3])):
        feed = {"x": x, "shape": np.array(shape)}
        np.testing.assert_allclose(
            loaded.run(feed)["y"], original(path, feed), rtol=1e-4, atol=1e-5
        )


@pytest.mark.full
def test_generated_golden_data_hold_no_sample(tmp_path):
    path = save(reshaping(), tmp_path)
    x = floats(3, 8, seed=5)
    chosen = options(
        tmp_path, samples={"x": x}, inputs={"shape": [2, -1]}, golden="generated", precision="auto"
    )
    summary = collage.compile(path, chosen, output=tmp_path / "bundle")
    with np.load(tmp_path / "bundle" / "golden.npz") as golden:
        assert golden["main/input/x"].shape == (3, 8)
        assert not np.isin(golden["main/input/x"], x).any()
        assert golden["main/input/shape"].tolist() == [2, -1]  # a setting is no sample
    assert summary.precision is None or summary.precision.errors
    collage.load(tmp_path / "bundle").check()


def test_a_refused_sample_is_reported_without_its_values(tmp_path, capsys):
    document = model(
        [node("Gather", ["table", "ids"], ["y"])],
        {"ids": ("int64", ("length",))},
        ["y"],
        {"table": floats(30, 4)},
    )
    path = save(document, tmp_path)
    np.savez(tmp_path / "a.npz", ids=np.array([3, SECRET]))
    command = [
        "compile",
        str(path),
        "-o",
        str(tmp_path / "bundle"),
        "--cache-dir",
        str(tmp_path / "c"),
    ]
    assert main([*command, "--samples", str(tmp_path / "a.npz"), "--quiet"]) == 2
    message = capsys.readouterr().err
    assert "on the samples" in message
    assert "must be within" in message
    assert str(SECRET) not in message
    assert not (tmp_path / "bundle").exists()


def test_samples_stay_out_of_the_store_and_reports(tmp_path):
    ids = np.array([31, 29, 28, 27, 26])
    document = model(
        [
            node("Gather", ["table", "ids"], ["rows"]),
            node("Equal", ["ids", "ids"], ["same"]),
            node("NonZero", ["same"], ["places"]),
            node("Relu", ["rows"], ["y"]),
        ],
        {"ids": ("int64", ("length",)), "secret": ("int64", ())},
        ["y", "places", "secret_out"],
        {"table": floats(32, 4)},
    )
    document.graph.node.append(node("Neg", ["secret"], ["secret_out"]))
    path = save(document, tmp_path)
    chosen = options(
        tmp_path, samples={"ids": ids, "secret": SECRET}, golden="generated",
        store=str(tmp_path / "shared"),
    )  # fmt: skip
    summary = collage.compile(path, chosen, output=tmp_path / "bundle")
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert any(file.is_relative_to(tmp_path / "shared") for file in files)
    raw = np.array(SECRET).tobytes()
    holders = [f for f in files if raw in (data := f.read_bytes()) or str(SECRET).encode() in data]
    assert holders == []
    assert str(SECRET) not in summary.to_json()


def test_candidates_take_samples(tmp_path, capsys):
    path = save(reshaping(), tmp_path)
    np.savez(tmp_path / "a.npz", x=floats(3, 8))
    command = [
        "candidates",
        str(path),
        "--samples",
        str(tmp_path / "a.npz"),
        "--input",
        "shape=2,-1",
    ]
    assert main([*command, "--backends", "onnxruntime", "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)["backends"]
    assert listed["alone"] == 3


def test_a_sample_of_another_shape_is_refused(tmp_path):
    path = save(reshaping(), tmp_path)
    with pytest.raises(ModelError, match="on the samples"):
        collage.compile(
            path,
            options(tmp_path, samples={"x": floats(3, 8), "shape": [5, 5]}),
            output=tmp_path / "bundle",
        )
