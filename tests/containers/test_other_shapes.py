"""The server answers shapes that no function has, and its metrics tell which way requests went."""

import asyncio
import math

import httpx
import numpy as np
import pytest

from containers import serve
from containers.serving.app import Server
from containers.serving.watchdog import Watchdog
from tests.containers.test_entries import infer
from tests.support import original_models
from tests.support.other_shapes import add_ways, copied


@pytest.fixture
def folder(bundle, tmp_path):
    """A copy of the bundle of relu."""
    return copied(bundle, tmp_path)


@pytest.fixture
def application(folder):
    """A server whose fallback squares, where the functions are relu: the numbers tell the way."""
    return application_of(folder, original_models.square_model(folder / "original.onnx"))


def application_of(folder, file):
    """Return the server of relu for one shape; `file` is its fallback."""
    add_ways(folder, file)
    parsed = serve._parser().parse_args(["--bundle", str(folder)])
    engine = serve._engine(folder, parsed)
    limits = serve._limits(engine, parsed)
    watchdog = Watchdog(engine, math.inf, lambda: None)
    return Server("relu", "1", engine, limits, watchdog=watchdog).application()


def test_every_way_is_answered_and_counted(application):
    async def ask():
        transport = httpx.ASGITransport(app=application)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            answers = []
            for shape in ((2, 8), (1, 8), (5, 2)):
                method, path, body = infer("relu", np.full(shape, 3, np.float32))
                answers.append((await client.request(method, path, json=body)).json())
            metrics = (await client.get("/metrics")).text
            return answers, metrics, (await client.get("/v2/models/relu")).json()

    answers, metrics, described = asyncio.run(ask())
    assert [answer["outputs"][0]["data"][0] for answer in answers] == [3, 3, 9]
    assert [answer["outputs"][0]["shape"] for answer in answers] == [[2, 8], [1, 8], [5, 2]]
    labels = 'model="relu",version="1"'
    # The self-check with golden data is one of the exact calls.
    assert f'calls_total{{{labels},way="exact",function="main_1"}} 2' in metrics
    assert f'calls_total{{{labels},way="padded",function="main_1"}} 1' in metrics
    assert f'calls_total{{{labels},way="fallback",function=""}} 1' in metrics
    assert f'other_shapes_total{{{labels},shapes="x: [5, 2]"}} 1' in metrics
    assert described["inputs"][0]["shape"] == [-1, 2]


def test_inputs_with_defaults_are_optional(folder):
    application = application_of(folder, original_models.flushed_scale_model(folder / "o.onnx"))

    async def ask():
        transport = httpx.ASGITransport(app=application)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            method, path, body = infer("relu", np.full((2, 8), 3, np.float32))
            factor = {"name": "factor", "shape": [1], "datatype": "FP32", "data": [5.0]}
            answers = []
            for inputs in ([], [factor], [factor | {"name": "other"}]):
                body["inputs"] = [*body["inputs"][:1], *inputs]
                answers.append((await client.request(method, path, json=body)).json())
            return answers, (await client.get("/v2/models/relu")).json()

    (plain, scaled, refused), described = asyncio.run(ask())
    assert plain["outputs"][0]["data"][0] == 3
    assert scaled["outputs"][0]["data"][0] == 15
    assert "unknown input 'other'; expected x, factor" in refused["error"]
    assert [entry["name"] for entry in described["inputs"]] == ["x", "factor"]
    assert described["inputs"][1] == {
        "name": "factor", "datatype": "FP32", "shape": [1], "parameters": {"optional": True},
    }  # fmt: skip


def test_an_input_of_the_functions_may_have_a_default(folder):
    np.savez(folder / "defaults.npz", **{"main/x": np.full((2, 8), 7, np.float32)})
    application = application_of(folder, original_models.square_model(folder / "original.onnx"))

    async def ask():
        transport = httpx.ASGITransport(app=application)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            method, path, body = infer("relu", np.full((2, 8), 3, np.float32))
            answers = []
            for inputs in (body["inputs"], []):
                answers.append(await client.request(method, path, json=body | {"inputs": inputs}))
            return answers, (await client.get("/v2/models/relu")).json()

    answers, described = asyncio.run(ask())
    assert [answer.json()["outputs"][0]["data"][0] for answer in answers] == [3, 7]
    assert [entry["parameters"] for entry in described["inputs"]] == [{"optional": True}]
