"""Inputs whose value decides a shape: a bundle from samples of one value answers every value."""

from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.helper import make_node as node

import collage
from tests.frontend.build import floats, model, save

pytestmark = pytest.mark.full


@dataclass(frozen=True)
class Setting:
    """A model with an input `setting`; the first value is the sample's."""

    nodes: tuple[onnx.NodeProto, ...]
    values: tuple[list[int] | int, ...]


SETTINGS = {
    "target shape": Setting(
        (node("Reshape", ["h", "setting"], ["r"]), node("Softmax", ["r"], ["y"], axis=-1)),
        ([1, 4, 6], [4, 2, 3], [2, -1, 3]),
    ),
    "axis": Setting(
        (node("ReduceMean", ["h", "setting"], ["r"], keepdims=1), node("Sigmoid", ["r"], ["y"])),
        ([0], [1], [-1]),
    ),
    "window": Setting(
        (
            node("HannWindow", ["setting"], ["window"]),
            node("ReduceMax", ["h"], ["scale"], keepdims=0),
            node("Mul", ["window", "scale"], ["y"]),
        ),
        (4, 7, 1),
    ),
}


def setting_model(folder, setting):
    """Save a model with a product before the setting, which every toolchain takes."""
    nodes = [node("MatMul", ["x", "w"], ["m"]), node("Relu", ["m"], ["h"]), *setting.nodes]
    shape = np.shape(setting.values[0])
    proto = model(
        nodes, {"x": ("float32", (4, 6)), "setting": ("int64", shape)}, ["y"], {"w": floats(6, 6)}
    )
    return save(proto, folder)


def compiled(path, folder, value):
    """Compile with samples of one value, without the original model."""
    x = folder / "x.npy"
    np.save(x, floats(4, 6))
    options = collage.Options(
        threads=1, cache_dir=folder / "store", backends=("onnxruntime", "openvino", "tvm"),
        samples=(x,), inputs={"setting": value}, measure_budget_s=2.0, refine_s=0.0, tune_s=0.0,
        verify_s=0.05, allow_slower=True, fallback=False,
    )  # fmt: skip
    collage.compile(path, options, output=folder / "bundle")
    return collage.load(folder / "bundle")


@pytest.mark.parametrize("kind", SETTINGS)
def test_every_value_has_the_originals_numbers(tmp_path, kind):
    setting = SETTINGS[kind]
    path = setting_model(tmp_path, setting)
    bundle = compiled(path, tmp_path, setting.values[0])
    session = onnxruntime.InferenceSession(path)
    for number, value in enumerate(setting.values):
        feed = {"x": floats(4, 6, seed=number), "setting": np.array(value)}
        (expected,) = session.run(["y"], feed)
        np.testing.assert_allclose(bundle.run(feed)["y"], expected, 1e-4, 1e-5)
    assert bundle.dispatch_counts().functions == {"main": len(setting.values)}
