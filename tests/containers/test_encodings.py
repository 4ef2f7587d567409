"""Compressed bodies of requests, bounded as they inflate, and compressed answers."""

import gzip
import json
import zlib

import numpy as np
import pytest

from collage.errors import InputError
from containers.serving.encodings import (
    MAX_MEMBERS,
    Inflater,
    TooLarge,
    UnknownEncoding,
    accepts_gzip,
    body_encoding,
)
from tests.servers.model_server import ModelServer, request

X = np.arange(8, dtype="float32").reshape(1, 8)
TEXT = json.dumps(request(X)).encode()
LENGTH = "Inference-Header-Content-Length"


def raw_deflate(data):
    compressor = zlib.compressobj(wbits=-15)
    return compressor.compress(data) + compressor.flush()


COMPRESSED = {
    "gzip": ("gzip", gzip.compress(TEXT)),
    "gzip of two members": ("gzip", gzip.compress(TEXT[:9]) + gzip.compress(TEXT[9:])),
    "deflate": ("deflate", zlib.compress(TEXT)),
    "deflate without its frame": ("deflate", raw_deflate(TEXT)),
}


@pytest.mark.parametrize("name", COMPRESSED)
@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_a_body_inflates_from_pieces_of_any_size(name, step):
    encoding, body = COMPRESSED[name]
    inflater = Inflater(encoding, len(TEXT))
    for start in range(0, len(body), step):
        inflater.feed(body[start : start + step])
    assert inflater.finish() == TEXT


@pytest.mark.parametrize("size", [0, 65535, 65536, 65537, 1 << 20])
def test_bodies_about_the_steps_inflate_whole(size):
    data = bytes(size)
    inflater = Inflater("gzip", size)
    inflater.feed(gzip.compress(data))
    assert inflater.finish() == data


def test_a_bomb_stops_at_the_limit():
    bomb = gzip.compress(bytes(64 << 20))
    inflater = Inflater("gzip", 1 << 20)
    with pytest.raises(TooLarge):
        inflater.feed(bomb)
    assert len(inflater.content) <= (1 << 20) + (64 << 10)


@pytest.mark.parametrize(
    ("encoding", "body", "reason"),
    [
        ("gzip", b"{}", "not valid gzip"),
        ("deflate", b"\xff\xff\xff\xff", "not valid deflate"),
        ("gzip", gzip.compress(TEXT)[:-1], "ends within its gzip"),
        ("deflate", zlib.compress(TEXT)[:-5], "ends within its deflate"),
        ("gzip", gzip.compress(TEXT) + b"xxx", "not valid gzip"),
        ("deflate", zlib.compress(TEXT) + b"x", "bytes follow"),
        ("gzip", gzip.compress(b"") * (MAX_MEMBERS + 1), "bytes follow"),
        ("gzip", b"", "ends within its gzip"),
    ],
)
def test_a_damaged_body_is_refused_with_a_reason(encoding, body, reason):
    inflater = Inflater(encoding, 1 << 20)

    def read():
        inflater.feed(body)
        inflater.finish()

    with pytest.raises(InputError, match=reason):
        read()


@pytest.mark.parametrize(
    ("header", "encoding"),
    [(None, ""), ("identity", ""), ("gzip", "gzip"), (" GZip ", "gzip"), ("x-gzip", "gzip")],
)
def test_known_encodings(header, encoding):
    assert body_encoding(header) == encoding


@pytest.mark.parametrize("header", ["br", "zstd", "gzip, gzip", "gzip;q=1"])
def test_unknown_encodings(header):
    with pytest.raises(UnknownEncoding, match="gzip, deflate"):
        body_encoding(header)


@pytest.mark.parametrize(
    ("header", "accepted"),
    [
        (None, False), ("", False), ("br", False), ("gzip;q=0", False), ("*;q=0", False),
        ("gzip;q=0, *", False), ("gzip", True), ("br, gzip;q=0.5", True), ("*", True),
    ],
)  # fmt: skip
def test_a_client_that_accepts_gzip_says_so(header, accepted):
    assert accepts_gzip(header) == accepted


@pytest.fixture(scope="module")
def server(bundle):
    created = ModelServer(bundle, "--gzip", "0.1KiB")
    yield created
    created.stop()


def post(server, body, encoding, **headers):
    return server.post(content=body, headers={"Content-Encoding": encoding, **headers})


@pytest.mark.parametrize("name", COMPRESSED)
def test_the_server_answers_a_compressed_request(server, name):
    encoding, body = COMPRESSED[name]
    answer = post(server, body, encoding)
    assert answer.json()["outputs"][0]["data"] == list(range(8))


def test_binary_tensors_may_be_compressed(server):
    entry = {"name": "x", "shape": [1, 8], "datatype": "FP32"}
    entry["parameters"] = {"binary_data_size": X.nbytes}
    text = json.dumps({"inputs": [entry]}).encode()
    answer = post(server, gzip.compress(text + X.tobytes()), "gzip", **{LENGTH: str(len(text))})
    assert answer.json()["outputs"][0]["data"] == list(range(8))


@pytest.mark.parametrize(
    ("body", "encoding", "status", "reason"),
    [
        (b"{}", "br", 415, "none of gzip, deflate"),
        (gzip.compress(bytes(8 << 20)), "gzip", 413, "the most this model needs"),
        (b"{}", "gzip", 400, "not valid gzip"),
        (gzip.compress(TEXT)[:-9], "gzip", 400, "ends within"),
        (gzip.compress(b"{"), "gzip", 400, "no inference request"),
    ],
)
def test_the_server_refuses_what_does_not_inflate(server, body, encoding, status, reason):
    before = server.status_bytes("VmHWM")
    answer = post(server, body, encoding)
    assert (answer.status_code, reason in answer.json()["error"]) == (status, True), answer.text
    assert server.status_bytes("VmHWM") - before < 16 << 20
    assert server.metric("collage_serve_memory_reserved_bytes") == 0
    assert ("accept-encoding" in answer.headers) == (status == 415)


def test_json_answers_are_compressed_for_who_accepts_it(server):
    def headers(accept, **parameters):
        body = request(X) | {"parameters": parameters}
        answer = server.post(json=body, headers={"Accept-Encoding": accept})
        assert answer.status_code == 200
        return answer.headers.get("content-encoding"), answer.headers.get("vary")

    assert headers("gzip") == ("gzip", "Accept-Encoding")
    assert headers("identity") == (None, None)
    assert headers("gzip", binary_data_output=True) == (None, None)
    answer = server.post(json=request(X), headers={"Accept-Encoding": "gzip"})
    assert answer.json()["outputs"][0]["data"] == list(range(8))
