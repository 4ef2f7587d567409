"""The end of a server behind proxies: unready at once, its port open for a while, nothing lost."""

import json
import signal
import socket
import threading
import time

import httpx
import numpy as np
import pytest

from tests.servers.model_server import INFER, ModelServer, head, request
from tests.servers.receiver import PrefectRecorder, Receiver
from tests.support.waiting import wait_for

X = np.arange(8, dtype="float32").reshape(1, 8)


@pytest.fixture
def server(bundle):
    created = ModelServer(bundle, "--drain", "1s")
    yield created
    created.kill()


def test_a_draining_server_is_unready_and_answers(server):
    begun = json.dumps(request(X)).encode()
    with server.connect() as slow:
        slow.sendall(head(len(begun)) + begun[:-1])
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: httpx.get(f"{server.url}/v2/health/ready").status_code == 503, 1.0)
        assert httpx.get(f"{server.url}/v2/models/relu/ready").status_code == 503
        assert httpx.get(f"{server.url}/v2/health/live").status_code == 200
        time.sleep(0.2)  # uvicorn's tick
        late = httpx.post(f"{server.url}{INFER}", json=request(X))
        assert (late.status_code, late.headers["connection"]) == (200, "close")
        wait_for(lambda: not server.is_open(), 5.0)
        slow.sendall(begun[-1:])
        assert slow.recv(100).startswith(b"HTTP/1.1 200")
    assert server.process.wait(10) == 0


def test_no_request_is_lost_while_proxies_learn(server):
    """A proxy goes on sending for half of the drain."""
    statuses = []

    def send():
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            statuses.append(httpx.post(f"{server.url}{INFER}", json=request(X)).status_code)

    clients = [threading.Thread(target=send) for _ in range(2)]
    server.process.send_signal(signal.SIGTERM)
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    assert set(statuses) == {200}
    assert server.process.wait(10) == 0


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT], ids=["term", "int"])
def test_another_signal_ends_the_drain(bundle, second):
    server = ModelServer(bundle, "--drain", "60s")
    server.process.send_signal(signal.SIGTERM)
    wait_for(lambda: httpx.get(f"{server.url}/v2/health/ready").status_code == 503, 2.0)
    server.process.send_signal(second)
    server.process.wait(10)
    assert not server.is_open()


def test_a_draining_receiver_is_unready_and_accepts(tmp_path):
    prefect = PrefectRecorder()
    receiver = Receiver(tmp_path, prefect.url, COLLAGE_RECEIVER__DRAIN_S="1")
    receiver.process.send_signal(signal.SIGTERM)
    wait_for(lambda: httpx.get(f"{receiver.status_url}/readyz").status_code == 503, 1.0)
    forged = httpx.post(
        f"{receiver.url}/webhooks/mlflow",
        content=b"{}",
        headers={"Content-Type": "application/json"},
    )
    assert forged.status_code == 401
    assert httpx.get(f"{receiver.status_url}/healthz").status_code == 200
    receiver.process.wait(10)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", receiver.port))
    prefect.close()
