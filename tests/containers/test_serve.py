"""The model server as a real process, spoken to by a real HTTP client."""

import json
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest

from collage.store import open_store
from collage.store.bundles import publish_bundle
from tests.runtime.conftest import gate_entry, write_manifest
from tests.servers.model_server import INFER, ModelServer, head, request


@pytest.fixture(scope="module")
def server(bundle):
    created = ModelServer(bundle, "--max-body", "1MiB", "--threads", "2", "--body-timeout", "1s")
    yield created
    created.stop()
    assert created.process.returncode == 0


def binary(x, outputs):
    entry = {"name": "x", "shape": list(x.shape), "datatype": "FP32"}
    entry["parameters"] = {"binary_data_size": x.nbytes}
    text = json.dumps({"id": "7", "inputs": [entry], **outputs}).encode()
    return text + x.tobytes(), {"Inference-Header-Content-Length": str(len(text))}


def sample(rows, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, 8)).astype("float32")


def test_it_starts_in_two_seconds(server):
    print(f"port open {server.started_s:.2f} s after the process began")
    assert server.started_s < 2 * 3  # this machine is shared; `quiet` measures the two seconds


def test_health_and_metadata(server):
    get = server.client.get
    assert get("/v2").json()["extensions"] == ["binary_tensor_data"]
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/relu/ready"):
        assert get(path).status_code == 200
    actual = get("/v2/models/relu").json()
    assert actual["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 8]}]
    assert actual["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [-1, 8]}]
    assert get(f"/v2/models/relu/versions/{actual['versions'][0]}/ready").status_code == 200
    second = get("/v2/models/other")
    assert second.status_code == 404
    assert "this is 'relu'" in second.json()["error"]


@pytest.mark.parametrize("rows", [1, 2])
def test_json_tensors_of_every_shape_set(server, rows):
    x = sample(rows)
    answer = server.client.post(INFER, json=request(x, data=x.tolist())).json()
    (y,) = answer["outputs"]
    assert (y["name"], y["datatype"], y["shape"]) == ("y", "FP32", [rows, 8])
    np.testing.assert_array_equal(np.float32(y["data"]).reshape(rows, 8), np.maximum(x, 0))


@pytest.mark.parametrize(
    "outputs",
    [
        {"parameters": {"binary_data_output": True}},
        {"outputs": [{"name": "y", "parameters": {"binary_data": True}}]},
    ],
)
def test_binary_tensors_both_ways(server, outputs):
    x = sample(2)
    body, headers = binary(x, outputs)
    answer = server.client.post(INFER, content=body, headers=headers)
    length = int(answer.headers["Inference-Header-Content-Length"])
    raw = json.loads(answer.content[:length])
    assert (raw["id"], raw["outputs"][0]["parameters"]) == ("7", {"binary_data_size": 64})
    y = np.frombuffer(answer.content[length:], "<f4").reshape(2, 8)
    np.testing.assert_array_equal(y, np.maximum(x, 0))


WRONG = [
    ({"name": "z"}, "unknown input 'z'; expected x"),
    ({"shape": [4, 2]}, "no function of the bundle takes the shapes"),
    ({"shape": [1, 9]}, "9 values, not 8"),
    ({"shape": [-1, 8]}, "no list of sizes"),
    ({"datatype": "FP64"}, "dtype float64; expected float32"),
    ({"datatype": "FP31"}, "datatype 'FP31'; known: BOOL"),
    ({"data": ["a"] * 8}, "not float32"),
    ({"data": [1e39] * 8}, "cannot hold"),
    ({"data": [[1.0], [2.0, 3.0]]}, "no regular array"),
    ({"datatype": "INT32", "data": [0.5] * 8}, "not int32"),
    ({"datatype": "UINT8", "data": [300] * 8}, "cannot hold"),
    ({"parameters": {"binary_data_size": 32}}, "0 bytes are left"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG)
def test_wrong_inputs_are_400_and_say_why(server, changes, message):
    answer = server.client.post(INFER, json=request(sample(1), **changes))
    assert answer.status_code == 400
    assert message in answer.json()["error"]


@pytest.mark.parametrize(
    ("body", "headers", "message"),
    [
        (b"{", {}, "no inference request"),
        (b"[]", {}, "no inference request"),
        (b"{}", {}, "'inputs' is missing"),
        (b"{}", {"Inference-Header-Content-Length": "9"}, "no length within the body"),
        (b'{"inputs": []}', {}, "missing input 'x'"),
        (b'{"inputs": []}x', {"Inference-Header-Content-Length": "14"}, "1 bytes follow"),
        (b'{"inputs": [], "outputs": [{"name": "q"}]}', {}, "unknown output 'q'; there is y"),
    ],
)
def test_garbled_bodies_are_400(server, body, headers, message):
    answer = server.client.post(INFER, content=body, headers=headers)
    assert (answer.status_code, message in answer.json()["error"]) == (400, True), answer.json()


def test_a_body_that_is_too_big_or_never_comes(server):
    assert server.client.post(INFER, content=b" " * (2 << 20)).status_code == 413
    chunks = (b" " * 65536 for _ in range(40))
    assert server.client.post(INFER, content=chunks).status_code == 413
    with socket.create_connection(("127.0.0.1", server.port)) as slow:
        slow.sendall(head(10) + b"{")
        assert b" 408 " in slow.recv(1000)


def test_the_answer_to_a_body_that_is_too_big_reaches_its_client(server):
    """It is sent while the client still writes: closing with unread bytes would reset the connection."""
    for size in (3 << 20, 12 << 20):
        for content in (b" " * size, (b" " * 65536 for _ in range(size >> 16))):
            answer = server.client.post(INFER, content=content)
            assert (answer.status_code, "has more than" in answer.text) == (413, True)


def test_concurrent_clients_each_get_their_own_answer(server):
    def ask(seed):
        x = sample(1 + seed % 2, seed)
        body, headers = binary(x, {"parameters": {"binary_data_output": True}})
        answer = httpx.post(server.url + INFER, content=body, headers=headers, timeout=30)
        length = int(answer.headers["Inference-Header-Content-Length"])
        return np.array_equal(
            np.frombuffer(answer.content[length:], "<f4"), np.maximum(x, 0).ravel()
        )

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(100)))


def test_metrics_count_what_was_answered(server):
    value = server.metric
    before = value("collage_serve_request_seconds_count")
    server.client.post(INFER, json=request(sample(1)))
    server.client.post(INFER, content=b"{")
    assert value("collage_serve_request_seconds_count") == before + 2
    assert value("collage_serve_under_way") == 0
    assert value("collage_serve_places") == 66
    assert value("collage_serve_memory_bytes") == 256 << 20
    assert value("collage_serve_memory_reserved_bytes") == 0
    assert value("collage_serve_ready") == 1


def open_request(server, body):
    """Send the head and all but the last byte: the request has its place and is not computed yet."""
    created = socket.create_connection(("127.0.0.1", server.port))
    created.sendall(head(len(body)) + body[:-1])
    return created


def read(connection):
    data = b""
    while chunk := connection.recv(65536):
        data += chunk
        if data.endswith(b"}"):
            break
    return data


def test_a_full_queue_is_503_and_sigterm_answers_what_was_begun(bundle):
    server = ModelServer(bundle, "--queue", "1")
    body = json.dumps(request(sample(1))).encode()
    open_ones = [open_request(server, body) for _ in range(2)]
    time.sleep(0.3)
    refused = server.client.post(INFER, content=body)
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
    assert server.client.get("/v2/health/live").status_code == 200
    server.process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", server.port))
    for open_one in open_ones:
        open_one.sendall(body[-1:])
        assert read(open_one).startswith(b"HTTP/1.1 200")
        open_one.close()
    lines = server.stop()
    assert server.process.returncode == 0
    actual = [line for line in lines if line["message"] == "inference"]
    assert sorted(line["status"] for line in actual) == [200, 200, 503]
    assert {line["component"] for line in lines} == {"serve"}


def test_an_unfit_bundle_ends_with_its_exit_code(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "containers.serve", "--bundle", str(tmp_path), "--name", "x"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 5
    assert "manifest.json is missing" in json.loads(done.stderr.splitlines()[-1])["message"]


def test_an_unproven_bundle_is_not_served(bundle, tmp_path):
    for file in bundle.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    write_manifest(tmp_path, gate=[gate_entry("main"), gate_entry("main_1", "slower")])
    done = subprocess.run(
        [sys.executable, "-m", "containers.serve", "--bundle", str(tmp_path), "--name", "x"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 4
    assert "main_1 is slower" in json.loads(done.stderr.splitlines()[-1])["message"]


def test_a_bundle_from_a_store_by_its_alias(bundle, tmp_path):
    publish_bundle(open_store(tmp_path), bundle, ["relu/optimized"])
    server = ModelServer(tmp_path, "--alias", "relu/optimized")
    assert server.client.post(INFER, json=request(sample(1))).status_code == 200
    server.stop()
    assert server.process.returncode == 0


AUDIT = """
import sys
import containers.serve
from pathlib import Path
engine = containers.serve._engine(Path(sys.argv[1]), containers.serve._parser().parse_args(["--bundle", "x"]))
unwanted = {"tvm", "onnx", "onnxruntime", "openvino", "pydantic", "rich", "prefect", "boto3"}
print(sorted(unwanted & set(sys.modules)))
"""


def test_the_server_imports_no_compiler(bundle):
    done = subprocess.run(
        [sys.executable, "-c", AUDIT, str(bundle)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
