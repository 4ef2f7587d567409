"""A model server's readiness: what is not computed any more, or never ends, is seen and ends the process."""

import json
import shutil
import time

import numpy as np
import pytest

from tests.servers.model_bundles import FOREVER, looping_bundle
from tests.servers.model_server import INFER, ModelServer, head
from tests.support.waiting import wait_for


@pytest.fixture(scope="module")
def looping(tmp_path_factory):
    return looping_bundle(tmp_path_factory.mktemp("looping"))


def rounds(count):
    tensor = {"name": "x", "shape": [1], "datatype": "INT64", "data": [count]}
    return {"inputs": [tensor]}


def send(server, count):
    """Send a whole request, and wait for no answer."""
    content = json.dumps(rounds(count)).encode()
    created = server.connect()
    created.sendall(head(len(content)) + content)
    return created


def is_ready(server):
    return server.client.get("/v2/health/ready").status_code == 200


def test_a_call_that_never_ends_is_504_not_ready_and_the_end(looping):
    server = ModelServer(
        looping, "--call-timeout", "1s", "--watchdog", "0.2s", "--stop-timeout", "1s"
    )
    assert server.post(json=rounds(5)).json()["outputs"][0]["data"] == [5]
    assert is_ready(server)
    begin = time.monotonic()
    late = server.post(json=rounds(FOREVER))
    assert (late.status_code, "within 1 s" in late.json()["error"]) == (504, True)
    refused = server.client.get("/v2/health/ready")
    assert (refused.status_code, "its deadline is 1 s" in refused.json()["error"]) == (503, True)
    assert server.client.get("/v2/models/relu/ready").status_code == 503
    assert server.client.get("/v2/health/live").status_code == 200
    assert server.metric("collage_serve_ready") == 0
    waited = server.post(json=rounds(1))
    assert (waited.status_code, "no executable was free" in waited.json()["error"]) == (503, True)
    assert server.process.wait(20) == 1
    assert time.monotonic() - begin < 15
    assert "a call does not end" in server.log()


def test_another_copy_answers_while_one_hangs(looping):
    server = ModelServer(looping, "--call-timeout", "3s", "--threads", "2", "--stop-timeout", "1s")
    hanging = send(server, FOREVER)
    for _ in range(4):
        assert server.post(json=rounds(2)).status_code == 200
    hanging.close()
    server.kill()


def test_changed_numbers_make_it_unready_and_end_it(looping, tmp_path):
    folder = shutil.copytree(looping, tmp_path / "bundle")
    server = ModelServer(folder, "--watchdog", "2s")
    arrays = dict(np.load(folder / "golden.npz"))
    np.savez(folder / "golden.npz", **arrays | {"main/output/y": np.array([4], "int64")})
    wait_for(lambda: not is_ready(server))
    assert "was changed" in server.client.get("/v2/health/ready").json()["error"]
    assert server.process.wait(30) == 1
    assert "3 checks failed" in server.log()


def test_who_leaves_the_queue_frees_its_place(looping):
    """One call runs and two wait: the queue is full until one of them leaves; it is never computed."""
    server = ModelServer(looping, "--queue", "2", "--call-timeout", "10s", "--stop-timeout", "1s")
    waiting = [send(server, FOREVER)]
    wait_for(lambda: server.metric("collage_serve_under_way") == 1)
    waiting += [send(server, 1) for _ in range(2)]
    wait_for(lambda: server.metric("collage_serve_under_way") == 3)
    assert server.post(json=rounds(1)).status_code == 503
    waiting.pop().close()
    wait_for(lambda: server.metric("collage_serve_under_way") == 2)
    waiting.append(send(server, 1))
    wait_for(lambda: server.metric("collage_serve_under_way") == 3)
    remaining = server.metric('collage_serve_requests_total{model="relu"')
    assert remaining == 2, "the one that was refused, and the one that left"
    for client in waiting:
        client.close()
    server.kill()


def test_a_failing_request_does_not_make_it_unready(looping):
    """Odd values may fail a kernel; whether the model fails is for the golden data to say."""
    server = ModelServer(looping, "--watchdog", "0.3s")
    for _ in range(4):
        assert server.post(json=rounds(-5)).status_code == 500
    time.sleep(0.6)
    assert is_ready(server)
    assert server.client.post(INFER, json=rounds(1)).status_code == 200
    server.stop()
    assert server.process.returncode == 0
