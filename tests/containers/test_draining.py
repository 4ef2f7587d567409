"""The end of a server behind proxies: unready at once, its port open for a while, nothing lost."""

import json
import signal
import socket
import threading

import httpx
import numpy as np
import pytest

from tests.servers.model_server import INFER, ModelServer, head, request
from tests.servers.receiver import PrefectRecorder, Receiver
from tests.support.waiting import wait_for

X = np.arange(8, dtype="float32").reshape(1, 8)


@pytest.fixture
def server(bundle):
    """A server that drains until another signal: nothing depends on the machine's speed."""
    created = ModelServer(bundle, "--drain", "600s")
    yield created
    created.kill()


def is_unready(url):
    return httpx.get(url, timeout=30).status_code == 503


def test_a_draining_server_is_unready_and_answers(server):
    begun = json.dumps(request(X)).encode()
    with server.connect() as slow:
        slow.sendall(head(len(begun)) + begun[:-1])
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: is_unready(f"{server.url}/v2/health/ready"))
        assert is_unready(f"{server.url}/v2/models/relu/ready")
        assert server.client.get("/v2/health/live").status_code == 200
        wait_for(lambda: server.client.get("/v2/health/live").headers.get("connection") == "close")
        assert server.post(json=request(X)).status_code == 200
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: not server.is_open())
        slow.sendall(begun[-1:])
        assert slow.recv(100).startswith(b"HTTP/1.1 200")
    assert server.process.wait(30) == 0


def test_no_request_is_lost_while_proxies_learn(server):
    """They go on to send after the signal, over new connections and those that they have."""
    statuses = []

    def send():
        with httpx.Client(base_url=server.url, timeout=30) as client:
            statuses.extend(client.post(INFER, json=request(X)).status_code for _ in range(20))

    clients = [threading.Thread(target=send) for _ in range(2)]
    for client in clients:
        client.start()
    server.process.send_signal(signal.SIGTERM)
    for client in clients:
        client.join()
    assert statuses == [200] * 40
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(30) == 0


def test_sigint_ends_the_drain(server):
    server.process.send_signal(signal.SIGTERM)
    wait_for(lambda: is_unready(f"{server.url}/v2/health/ready"))
    server.process.send_signal(signal.SIGINT)
    server.process.wait(30)
    assert not server.is_open()


def test_a_drain_ends_after_its_time(bundle):
    server = ModelServer(bundle, "--drain", "0.5s")
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(30) == 0


def test_a_draining_receiver_is_unready_and_accepts(tmp_path):
    prefect = PrefectRecorder()
    receiver = Receiver(tmp_path, prefect.url, COLLAGE_RECEIVER__DRAIN_S="600")
    receiver.process.send_signal(signal.SIGTERM)
    wait_for(lambda: is_unready(f"{receiver.status_url}/readyz"))
    forged = httpx.post(
        f"{receiver.url}/webhooks/mlflow",
        content=b"{}",
        headers={"Content-Type": "application/json"},
        timeout=30,
    )
    assert forged.status_code == 401
    assert httpx.get(f"{receiver.status_url}/healthz", timeout=30).status_code == 200
    receiver.process.send_signal(signal.SIGTERM)
    receiver.process.wait(30)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", receiver.port))
    prefect.close()
