"""Both servers close connections that are idle or slow, and answer probes whatever others hold open."""

import json
import resource
import socket
import time
from contextlib import ExitStack

import httpx
import numpy as np
import pytest

from tests.servers.model_bundles import WIDE, wide_bundle
from tests.servers.model_server import INFER, ModelServer, head, request
from tests.servers.receiver import PrefectRecorder, Receiver

MANY = 600


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    created = ModelServer(
        wide_bundle(tmp_path_factory.mktemp("wide")), "--head-timeout", "1s", "--idle-timeout", "1s",
        "--body-timeout", "1s", "--write-timeout", "1s", "--max-connections", "300",
    )  # fmt: skip
    yield created
    created.stop()


@pytest.fixture(scope="module")
def receiver(tmp_path_factory):
    prefect = PrefectRecorder()
    created = Receiver(
        tmp_path_factory.mktemp("receiver"), prefect.url, COLLAGE_RECEIVER__HEAD_S="1",
        COLLAGE_RECEIVER__BODY_S="1", COLLAGE_RECEIVER__IDLE_S="1",
    )  # fmt: skip
    yield created
    created.kill()
    prefect.close()


@pytest.fixture(params=["model", "receiver"])
def server(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(autouse=True)
def _descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def connect(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=20)


def closed_after_s(connection, trickle=b""):
    """Seconds until the server closes it, while a byte of `trickle` is sent every 0.1 s."""
    begin = time.monotonic()
    connection.settimeout(0.1)
    while time.monotonic() - begin < 20:
        try:
            if trickle:
                connection.sendall(trickle)
            if not connection.recv(65536):
                break
        except TimeoutError:
            continue
        except OSError:
            break
    return time.monotonic() - begin


def probe(server):
    path = "/v2/health/ready" if isinstance(server, ModelServer) else "/readyz"
    url = server.url if isinstance(server, ModelServer) else server.status_url
    return httpx.get(url + path, timeout=20).status_code


POST = {"model": INFER, "receiver": "/webhooks/mlflow"}
SLOW = {
    "nothing is sent": (b"", b""),
    "a slow head": (b"GET / HTTP/1.1\r\n", b"x"),
    "half a head": (b"POST / HTTP/1.1\r\nHost: x\r\nContent-", b""),
    "idle between requests": (b"GET /none HTTP/1.1\r\nHost: x\r\n\r\n", b""),
    "the rest of a body after its answer": (
        b"POST /none HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n", b"x"),
}  # fmt: skip


@pytest.mark.parametrize("case", SLOW)
def test_an_idle_or_slow_connection_is_closed(server, case):
    first, trickle = SLOW[case]
    with connect(server) as connection:
        connection.sendall(first)
        assert 0.5 < closed_after_s(connection, trickle) < 8


def test_a_slow_body_is_408_and_closed(server):
    kind = "model" if isinstance(server, ModelServer) else "receiver"
    with connect(server) as connection:
        lines = head(9999, POST[kind]).replace(
            b"\r\n\r\n", b"\r\nContent-Type: application/json\r\n\r\n"
        )
        connection.sendall(lines + b"{")
        connection.settimeout(20)
        assert connection.recv(100).startswith(b"HTTP/1.1 408")
        assert closed_after_s(connection, b" ") < 8


def test_many_idle_connections_stop_nobody(server):
    """They are more than the server allows; the oldest go, and who asks is answered."""
    with ExitStack() as stack:
        held = [stack.enter_context(connect(server)) for _ in range(MANY)]
        for connection in held[::2]:
            connection.sendall(b"POST ")
        assert probe(server) == 200
        got = httpx.get(f"{server.url}/v2/models/none", timeout=20)
        assert got.status_code == 404
        held[0].settimeout(20)
        assert closed_after_s(held[0]) < 20
    assert probe(server) == 200


def test_slow_bodies_on_every_connection_stop_nobody(server):
    kind = "model" if isinstance(server, ModelServer) else "receiver"
    with ExitStack() as stack:
        for _ in range(MANY):
            held = stack.enter_context(connect(server))
            held.sendall(
                head(99, POST[kind]).replace(b"Host", b"Content-Type: application/json\r\nHost")
                + b"{"
            )
        assert probe(server) == 200
        assert httpx.get(f"{server.url}/v2/models/none", timeout=20).status_code == 404


def test_a_client_that_never_reads_is_cut_off(model):
    """Its answer is larger than the kernel's buffers; its memory is given back."""
    x = np.ones(WIDE, "float32")
    content = request(x, data=[-1.2345678901234567e-5] * WIDE[1])
    body = json.dumps(content).replace("-1.2345678901234567e-05", "1.234567e-5").encode()
    with ExitStack() as stack:
        for _ in range(4):
            created = stack.enter_context(socket.socket())
            created.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            created.connect(("127.0.0.1", model.port))
            created.sendall(head(len(body)) + body)
        deadline = time.monotonic() + 20
        while model.metric("collage_serve_requests_total") < 4:
            assert time.monotonic() < deadline
        assert model.metric("collage_serve_memory_reserved_bytes") > 0, "the answers are not read"
        while model.metric("collage_serve_memory_reserved_bytes"):
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_requests_on_one_connection_are_answered_in_turn(model):
    """A connection that is used stays open, for longer than each of the limits."""
    with httpx.Client(base_url=model.url) as client:
        for _ in range(6):
            assert client.get("/v2/health/live").status_code == 200
            time.sleep(0.3)
