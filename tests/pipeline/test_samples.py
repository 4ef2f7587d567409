"""A compile with the user's samples: measured, judged and kept with them, and nowhere else."""

import json

import numpy as np
import onnxruntime
import pytest
from onnx import numpy_helper
from onnx.helper import make_graph, make_tensor_value_info
from onnx.helper import make_node as node

import collage
from collage.cli import main
from collage.errors import ModelError
from tests.frontend.build import floats, model, save

SECRET = 77123456789


def options(folder, backends=("onnxruntime",), **more):
    return collage.Options(
        threads=1, workers=1, cache_dir=folder / "store", backends=backends,
        measure_budget_s=2.0, refine_s=0.0, tune_s=0.0, verify_s=0.05, allow_slower=True, **more,
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


@pytest.mark.full
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
        tmp_path, ("onnxruntime", "tvm"), samples={"ids": ids, "secret": SECRET}, golden="generated",
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


def recurrent(rate):
    """Return a branch with a recurrent layer whose width belongs to a sampling rate."""
    width = rate // 1000
    return make_graph(
        [
            node("Slice", ["input", "zero", f"width_{rate}", "one"], ["part"]),
            node("Unsqueeze", ["part", "zero"], ["sequence"]),
            node(
                "LSTM",
                ["sequence", f"w_{rate}", "r", "", "", "state", "state"],
                ["ys", "h", "c"],
                hidden_size=4,
            ),
            node("Squeeze", ["ys", "zero"], ["output"]),
        ],
        f"rate_{rate}",
        [],
        [make_tensor_value_info("output", 1, None), make_tensor_value_info("h", 1, None)],
        [
            numpy_helper.from_array(floats(1, 16, width, seed=rate), f"w_{rate}"),
            numpy_helper.from_array(np.int64([width]), f"width_{rate}"),
        ],
    )


def speech_detector(folder):
    """Write a model with the traits of speech detectors: a scalar chooses a branch, state is fed back."""
    document = model(
        [
            node("Equal", ["sr", "rate"], ["is_high"]),
            node(
                "If", ["is_high"], ["output", "state_out"],
                then_branch=recurrent(16000), else_branch=recurrent(8000),
            ),
        ],
        {"input": ("float32", (None, None)), "state": ("float32", (1, None, 4)), "sr": ("int64", ())},
        ["output", "state_out"],
        {
            "rate": np.int64(16000), "zero": np.int64([0]), "one": np.int64([1]),
            "r": floats(1, 16, 4),
        },
    )  # fmt: skip
    return save(document, folder)


@pytest.mark.full
def test_a_speech_detector_compiles_for_its_sampling_rate(tmp_path):
    path = speech_detector(tmp_path)
    np.savez(tmp_path / "speech.npz", input=floats(1, 32), state=np.zeros((1, 1, 4), np.float32))
    chosen = options(tmp_path, samples=tmp_path / "speech.npz", inputs={"sr": 16000})
    collage.compile(path, chosen, output=tmp_path / "bundle")
    loaded = collage.load(tmp_path / "bundle")
    loaded.check()
    for rate in (16000, 8000):
        feed = {
            "input": floats(1, 32, seed=3),
            "state": floats(1, 1, 4, seed=4),
            "sr": np.array(rate),
        }
        np.testing.assert_allclose(
            loaded.run(feed)["output"], original(path, feed), rtol=1e-4, atol=1e-5
        )
