"""Each entry of a bundle is a model of the protocol."""

import asyncio
import math
import shutil

import httpx
import numpy as np
import pytest

from containers import serve
from containers.serving.app import Server
from containers.serving.watchdog import Watchdog
from tests.runtime.conftest import SHAPES, tensor, write_manifest

ENTRIES = {"encoder": "main", "decoder": "main_1"}
"""Functions of the entries."""


@pytest.fixture
def ask(bundle, tmp_path):
    """Return a function that sends requests to the server of a bundle with two entries."""
    folder = tmp_path / "bundle"
    shutil.copytree(bundle, folder)
    functions = [
        {
            "function": function,
            "entry": entry,
            "inputs": [tensor("x", SHAPES[function])],
            "outputs": [tensor("y", SHAPES[function])],
        }
        for entry, function in ENTRIES.items()
    ]
    write_manifest(folder, functions=functions)
    parsed = serve._parser().parse_args(["--bundle", str(folder)])
    engine = serve._engine(folder, parsed)
    limits = serve._limits(engine, parsed)
    watchdog = Watchdog(engine, math.inf, lambda: None)
    application = Server("speech", "1", engine, limits, watchdog=watchdog).application()

    def ask(*requests):
        async def answers():
            transport = httpx.ASGITransport(app=application)
            async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
                return [
                    await client.request(method, path, json=body) for method, path, body in requests
                ]

        return asyncio.run(answers())

    return ask


def infer(model, array):
    inputs = [{"name": "x", "shape": list(array.shape), "datatype": "FP32",
               "data": array.ravel().tolist()}]  # fmt: skip
    return ("POST", f"/v2/models/{model}/infer", {"inputs": inputs})


def test_each_entry_answers_as_a_model(ask):
    arrays = {entry: np.full(SHAPES[name], -1 + 2 * number, "float32")
              for number, (entry, name) in enumerate(ENTRIES.items())}  # fmt: skip
    requests = [infer(f"speech.{entry}", array) for entry, array in arrays.items()]
    *answers, metrics = ask(*requests, ("GET", "/metrics", None))
    for answer, (entry, array) in zip(answers, arrays.items(), strict=True):
        assert answer.json()["model_name"] == f"speech.{entry}"
        assert answer.json()["outputs"][0]["data"] == np.maximum(array, 0).ravel().tolist()
        label = f'collage_serve_requests_total{{model="speech.{entry}",version="1",code="200"}} 1'
        assert label in metrics.text
    assert metrics.text.count("# TYPE collage_serve_request_seconds histogram") == 1


def test_each_entry_has_its_own_metadata(ask):
    paths = [f"/v2/models/speech.{entry}" for entry in ENTRIES]
    described = ask(*(("GET", path, None) for path in paths))
    shapes = [answer.json()["inputs"][0]["shape"] for answer in described]
    assert shapes == [[1, 8], [2, 8]]
    ready = ask(("GET", f"{paths[0]}/ready", None), infer("speech.encoder", np.ones((2, 8))))
    assert ready[0].json()["name"] == "speech.encoder"
    assert (ready[1].status_code, "no function" in ready[1].text) == (400, True)


def test_the_bundle_is_no_model_beside_its_entries(ask):
    (answer,) = ask(("GET", "/v2/models/speech", None))
    assert answer.status_code == 404
    assert "this is 'speech.encoder' and 'speech.decoder'" in answer.json()["error"]
