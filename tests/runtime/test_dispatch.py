"""Which way a call takes through a bundle, and how the ways are counted."""

import numpy as np
import pytest

from collage.errors import InputError
from collage.runtime import dispatch
from collage.runtime.dispatch import Dispatcher
from collage.runtime.manifest import Signature, Tensor
from collage.runtime.padding import Crop, PaddedAxis
from collage.runtime.session import ExecutableSession
from tests.runtime.conftest import SHAPES
from tests.runtime.test_original_session import open_session
from tests.support import original_models

AXES = (PaddedAxis("x", 0, crops=(Crop("y", 0),)),)


@pytest.fixture(scope="module")
def session(bundle):
    signatures = tuple(
        Signature(name, (Tensor("x", shape, "float32"),), (Tensor("y", shape, "float32"),))
        for name, shape in SHAPES.items()
    )
    return ExecutableSession(bundle / "model.so", signatures[1:], threads=1)


@pytest.fixture
def original(tmp_path):
    """A model of other numbers (it squares), so that a result tells the way."""
    return open_session(original_models.square_model(tmp_path / "m.onnx"))


def x(*shape):
    return {"x": np.full(shape, 3, np.float32)}


def test_each_way_answers_its_shapes(session, original):
    dispatcher = Dispatcher(session, original, AXES)
    before = dispatcher.counts().functions["main_1"]
    assert (dispatcher.run(x(2, 8))["y"] == 3).all()
    padded = dispatcher.run(x(1, 8))["y"]
    assert padded.shape == (1, 8)
    assert (padded == 3).all()
    assert (dispatcher.run(x(5, 2))["y"] == 9).all()
    counts = dispatcher.counts()
    assert counts.functions["main_1"] == before + 1
    assert counts.padded == {"main_1": 1}
    assert counts.padded_shapes == {"x: [1, 8]": 1}
    assert counts.fallback_shapes == {"x: [5, 2]": 1}


def test_tensors_take_the_same_ways(session, original):
    dispatcher = Dispatcher(session, original, AXES)
    for shape, value in (((2, 8), 3), ((1, 8), 3), ((5, 2), 9)):
        tensor = dispatcher.run_tensors(x(*shape), 0)["y"]
        assert tensor.shape == shape
        assert (np.from_dlpack(tensor) == value).all()


def test_without_another_way_the_shapes_are_refused(session):
    message = (
        r"no function of the bundle takes the shapes \(x: \[5, 2\]\); expected \(x: float32\[2, 8\]"
    )
    with pytest.raises(InputError, match=message):
        Dispatcher(session, None).run(x(5, 2))
    with pytest.raises(InputError, match=message):
        Dispatcher(session, None, AXES).run(x(5, 2))


def test_an_input_with_a_default_reaches_the_original(session, tmp_path):
    file = original_models.flushed_scale_model(tmp_path / "m.onnx")
    dispatcher = Dispatcher(session, open_session(file), AXES, defaults=["factor"])
    feeds = x(2, 8)
    assert (dispatcher.run(feeds)["y"] == 3).all()
    feeds["factor"] = np.full(1, 5, np.float32)
    assert (dispatcher.run(feeds)["y"] == 15).all()
    assert (np.from_dlpack(dispatcher.run_tensors(feeds, 0)["y"]) == 15).all()
    assert dispatcher.counts().fallback == 2


def test_without_the_original_a_default_stays(session):
    feeds = x(2, 8) | {"factor": np.ones(1, np.float32)}
    with pytest.raises(InputError, match="has the default of 'factor' as a constant"):
        Dispatcher(session, None, AXES, defaults=["factor"]).run(feeds)
    with pytest.raises(InputError, match="unknown input 'factor'"):
        Dispatcher(session, None, AXES).run(feeds)


def test_an_unknown_input_is_refused_by_name(session, original):
    with pytest.raises(InputError, match="unknown input 'z'"):
        Dispatcher(session, original, AXES).run(x(2, 8) | {"z": np.ones(1)})


def test_a_padded_input_of_another_dtype_is_refused(session):
    with pytest.raises(InputError, match="has dtype float64; expected float32"):
        Dispatcher(session, None, AXES).run({"x": np.ones((1, 8))})


def test_counted_shapes_are_bounded(original, monkeypatch):
    monkeypatch.setattr(dispatch, "MAX_COUNTED_SHAPES", 2)
    dispatcher = Dispatcher(None, original)
    for rows in range(1, 6):
        dispatcher.run(x(rows, 2))
    assert dispatcher.counts().fallback_shapes == {
        "x: [1, 2]": 1, "x: [2, 2]": 1, dispatch.FURTHER_SHAPES: 3,
    }  # fmt: skip
    assert dispatcher.counts().fallback == 5
