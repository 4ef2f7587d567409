"""What clients may send to a model server: each wrong body is refused with a reason, within its memory."""

import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest

from collage.runtime.manifest import Signature, Tensor
from containers.serving.memory import request_costs
from tests.servers.model_bundles import WIDE, wide_bundle
from tests.servers.model_server import INFER, ModelServer, request

LENGTH = "Inference-Header-Content-Length"
SLACK = 48 << 20
"""Of the process: buffers of connections, and what allocators keep."""


@pytest.fixture(scope="module")
def server(bundle):
    created = ModelServer(bundle)
    created.post(json=request(np.zeros((1, 8), "float32")))
    yield created
    created.stop()


def body(**changes):
    """A right request but for the changes; those to its input come as `x`."""
    raw = request(np.zeros((1, 8), "float32"), **changes.pop("x", {}))
    return json.dumps(raw | changes).encode()


def data(text):
    return body(x={"data": "DATA"}).replace(
        b'"DATA"', text if isinstance(text, bytes) else text.encode()
    )


NO_REQUEST = "the request is no inference request: "
HOSTILE = {
    "many strings and a long one": (data(json.dumps(["a"] * 9000 + ["x" * 20000])), "more values"),
    "few strings and a long one": (data(json.dumps(["a"] * 7 + ["x" * 50000])), "not float32"),
    "lists in lists": (data("[" * 30000 + "]" * 30000), "more lists"),
    "deep lists": (data("[" * 100 + "]" * 100), "deeper than"),
    "deep objects": (data('{"a":' * 100 + "0" + "}" * 100), "deeper than"),
    "deep after closing brackets in a string": (
        data('["' + "]" * 90 + '",' + "[" * 90 + "]" * 91), "deeper than"),
    "deep after an escaped quote": (data('["\\"' + "]" * 90 + '",' + "[" * 90 + "]" * 91), "deeper than"),
    "closing brackets": (b"]" * 60000, "more lists"),
    "closing braces": (b"}" * 60000, "more objects"),
    "objects": (data('{"a":' * 300 + "0" + "}" * 300), "more objects"),
    "empty lists": (data("[" * 999 + "]" * 999), "more lists"),
    "strings": (data("[" + '"a" ' * 2000 + "]"), "more strings"),
    "values": (data("[" + "0," * 30000 + "0]"), "more values"),
    "escapes": (data('"' + "\\n" * 20000 + '"'), "more escapes"),
    "beyond ASCII": (data('"' + "\u00e9" * 20000 + '"'), "beyond ASCII"),
    "not UTF-8": (data(b'"\xff\xfe"'), "can't decode"),
    "UTF-16": (body().decode().encode("utf-16"), NO_REQUEST),
    "an open string": (data('"abc'), NO_REQUEST),
    "nothing": (b"", NO_REQUEST),
    "null": (b"null", "the request is None, not an object"),
    "a number": (b"7", "the request is 7, not an object"),
    "parameters a list": (body(parameters=[1]), "'parameters' of the request is [1], not an object"),
    "inputs null": (body(inputs=None), "'inputs' is None, not a list"),
    "inputs an object": (body(inputs={}), "'inputs' is an object, not a list"),
    "an input null": (body(inputs=[None]), "an entry of 'inputs' is None, not an object"),
    "a name that is a list": (body(x={"name": ["x"]}), "the name of an input is ['x'], not a string"),
    "a long name": (body(x={"name": "x" * 9000}), "unknown input 'xxxx"),
    "the input twice": (body(inputs=json.loads(body())["inputs"] * 2), "given twice"),
    "an output null": (body(outputs=[None]), "an entry of 'outputs' is None"),
    "an output that is a list": (body(outputs=[{"name": []}]), "the name of an output is []"),
    "binary_data a string": (
        body(outputs=[{"name": "y", "parameters": {"binary_data": "no"}}]), "'binary_data' is 'no'"),
    "binary_data_output a number": (
        body(parameters={"binary_data_output": 1}), "'binary_data_output' is 1, not true or false"),
    "the id a list": (body(id=[]), "the id is [], not a string"),
    "a long id": (body(id="7" * 2000), "more than 1024 characters"),
    "a shape null": (body(x={"shape": None}), "the shape None is no list of sizes"),
    "a shape of lists": (body(x={"shape": [[8]]}), "is no list of sizes"),
    "a shape of truths": (body(x={"shape": [True, 8]}), "is no list of sizes"),
    "a shape of fractions": (body(x={"shape": [1.0, 8]}), "is no list of sizes"),
    "a shape of huge sizes": (body(x={"shape": [0, 10**30]}), "is no list of sizes"),
    "a shape of many dimensions": (body(x={"shape": [1] * 200}), "is no list of sizes"),
    "a shape of more than there is": (body(x={"shape": [2**31 - 1] * 32}), "values, not 8"),
    "a datatype that is a list": (body(x={"datatype": []}), "the datatype of 'x' is []"),
    "a datatype of strings": (body(x={"datatype": "BYTES"}), "datatype 'BYTES'; known: BOOL"),
    "a size that is a list": (body(x={"parameters": {"binary_data_size": []}}), "says []"),
    "a size that is true": (body(x={"parameters": {"binary_data_size": True}}), "says True"),
    "a huge size": (body(x={"parameters": {"binary_data_size": 10**300}}), "says a huge number"),
    "a negative size": (body(x={"parameters": {"binary_data_size": -32}}), "says -32"),
    "a size with a fraction": (body(x={"parameters": {"binary_data_size": 32.0}}), "says 32.0"),
    "a size in words": (body(x={"parameters": {"binary_data_size": "32"}}), "says '32'"),
    "data and a size": (
        body(x={"parameters": {"binary_data_size": 32}}) + bytes(32), "both 'data' and",
        {LENGTH: str(len(body(x={"parameters": {"binary_data_size": 32}})))}),
    "a shape of NaN": (body(x={"shape": [float("nan"), 8]}), "is no list of sizes"),
    "a shape of words": (body(x={"shape": ["1", 8]}), "is no list of sizes"),
    "a shape of nulls": (body(x={"shape": [None, 8]}), "is no list of sizes"),
    "a negative shape": (body(x={"shape": [-1, -8]}), "is no list of sizes"),
    "a datatype null": (body(x={"datatype": None}), "the datatype of 'x' is None"),
    "a name of half a character": (body(x={"name": "\ud800"}), "unknown input"),
    "an output's parameters a list": (
        body(outputs=[{"name": "y", "parameters": []}]), "'parameters' of output 'y' is []"),
    "an output twice": (body(outputs=[{"name": "y"}, {"name": "y"}]), "'y' is requested twice"),
    "no data": (body(inputs=[{"name": "x", "shape": [1, 8], "datatype": "FP32"}]), "'data' is missing"),
    "data null": (data("null"), "values, not 1"),
    "data an object": (data('{"a": 1}'), "values, not 1"),
    "truths": (data("[" + "true," * 7 + "true]"), "not float32"),
    "nulls": (data("[" + "null," * 7 + "null]"), "not float32"),
    "a list among numbers": (data("[1,2,3,4,5,6,7,[8]]"), "not float32"),
    "a number among lists": (data("[[1,2,3,4],5]"), "no regular array"),
    "a number of 5,000 digits": (data("[" + "1," * 7 + "1" * 5000 + "]"), "Exceeds the limit"),
    "a number of 4,000 digits": (data("[" + "1," * 7 + "1" * 4000 + "]"), "cannot hold"),
    "infinity": (data("[" + "1," * 7 + "1e999]"), "cannot hold"),
    "NaN": (data("[" + "1," * 7 + "NaN]"), "cannot hold"),
    "bytes nobody described": (body() + b"xx", "2 bytes follow", {LENGTH: str(len(body()))}),
    "a length of 5,000 digits": (body(), "no length within the body", {LENGTH: "1" * 5000}),
    "a negative length": (body(), "no length within the body", {LENGTH: "-1"}),
    "an empty length": (body(), "no length within the body", {LENGTH: ""}),
    "a length beyond ASCII": (body(), "no length within the body", {LENGTH: b"\xb2"}),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_body_is_400_and_says_why(server, name):
    content, reason, *headers = HOSTILE[name]
    before = server.status_bytes("VmHWM")
    answer = server.post(content=content, headers=dict(*headers))
    assert (answer.status_code, reason in answer.json()["error"]) == (400, True), answer.text
    assert len(answer.content) < 1000
    assert server.status_bytes("VmHWM") - before < 16 << 20


def test_right_requests_of_odd_looks_are_answered(server):
    x = np.arange(8, dtype="float32").reshape(1, 8)
    for addition in (
        {"id": "\u00e9\U0001f600"},
        {"parameters": {"other": [{"a": None}]}},
        {"outputs": []},
    ):
        raw = request(x, data=[[0, 1, 2, 3.0, 4, 5, 6, 7]]) | addition
        for text in (json.dumps(raw), json.dumps(raw, ensure_ascii=False, indent=4)):
            answer = server.post(content=text.encode())
            assert answer.status_code == 200, answer.text
            assert answer.json()["outputs"][0]["data"] == list(range(8))
            assert answer.json().get("id", "") == raw.get("id", "")


def test_the_body_limit_follows_from_the_model(server):
    limit = 65536 + 2 * 1024 + 32 * 16 + 16 * 3
    assert server.post(content=b" " * limit).status_code == 400
    refused = server.post(content=b" " * (limit + 1))
    assert (refused.status_code, str(limit) in refused.json()["error"]) == (413, True)


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    created = ModelServer(wide_bundle(tmp_path_factory.mktemp("wide")), "--memory", "48MiB")
    yield created
    created.stop()


def full(value, count=WIDE[1]):
    """A body of the largest size: `value` again and again, then spaces."""
    entry = {"name": "x", "shape": list(WIDE), "datatype": "FP32", "data": "DATA"}
    text = json.dumps({"inputs": [entry]}).encode()
    created = text.replace(b'"DATA"', b"[" + b",".join([value] * count) + b"]")
    limit = 65536 + 2 * 1024 + 32 * WIDE[1] + 16 * 2
    assert len(created) <= limit
    return created + b" " * (limit - len(created))


FULL = {
    "numbers": (full(b"-1.2345678901234567e-5"), {200}),
    "integers": (full(b"123456789"), {200}),
    "strings": (full(b'"a"') , {400}),
    "one long string": (full(b'"' + b"x" * (31 * WIDE[1]) + b'"', 1), {400}),
    "beyond ASCII": (full(b'"' + b"x" * (31 * WIDE[1]) + "\U0001f600".encode() + b'"', 1), {400}),
    "lists": (full(b"[]"), {400}),
    "objects": (full(b"{}"), {400}),
    "half as many numbers, in lists": (full(b"[1.5]", 200), {400}),
    "huge integers": (full(b"1" * 4000, 1000), {400}),
    "no JSON": (b"\xff" * len(full(b"0")), {400}),
}  # fmt: skip


def test_memory_stays_bounded_for_any_bodies_at_once(wide):
    """Eight clients send the largest bodies there can be; who finds no memory comes again."""
    x = np.zeros(WIDE, "float32")
    assert wide.post(json=request(x, data=x.ravel().tolist())).status_code == 200
    wide.forget_peak()
    before = wide.status_bytes("VmRSS")
    bodies = [*FULL.values()]

    def ask(case):
        content, statuses = case
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            answer = httpx.post(wide.url + INFER, content=content, timeout=60)
            if answer.status_code != 503:
                assert answer.status_code in statuses, answer.text
                return
            time.sleep(0.05)
        raise AssertionError("it never found memory")

    begin = time.perf_counter()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, bodies))
    grown = wide.status_bytes("VmHWM") - before
    print(
        f"{grown >> 20} MiB more after {len(bodies)} bodies in {time.perf_counter() - begin:.1f} s"
    )
    assert grown < (48 << 20) + SLACK
    lines = [json.loads(line) for line in wide.log().splitlines()]
    (loaded,) = [line for line in lines if "resident_bytes" in line]
    stated = loaded["resident_bytes"] + loaded["memory_bytes"] + (128 << 20)
    assert wide.status_bytes("VmHWM") < stated, "the bound that docs/operations.md states"
    assert wide.metric("collage_serve_memory_reserved_bytes") == 0


@pytest.mark.parametrize("case", FULL)
def test_a_largest_body_costs_no_more_than_is_reserved(wide, case):
    content, statuses = FULL[case]
    wide.forget_peak()
    before = wide.status_bytes("VmRSS")
    answer = wide.post(content=content)
    assert answer.status_code in statuses, answer.text
    x, y = (Tensor(name, WIDE, "float32") for name in "xy")
    costs = request_costs([Signature("main", (x,), (y,))], None)
    assert len(content) == costs.body_bytes
    reserved = costs.largest([Signature("main", (x,), (y,))])
    assert wide.status_bytes("VmHWM") - before < reserved + (2 << 20)


def test_who_finds_no_memory_is_told_to_come_again(wide):
    """Two clients have announced the largest body; a third finds too little left."""
    announced = [wide.connect() for _ in range(2)]
    try:
        for client in announced:
            client.sendall(
                f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(full(b'0'))}\r\n\r\n".encode()
            )
        deadline = time.monotonic() + 10
        while wide.metric("collage_serve_memory_reserved_bytes") < 30 << 20:
            assert time.monotonic() < deadline
        refused = wide.post(content=full(b"1.5"))
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
        assert "of 48 MiB" in refused.json()["error"]
        small = wide.post(content=b"{}")
        assert small.status_code == 400, "a small one has room"
    finally:
        for client in announced:
            client.close()


def test_too_little_memory_for_one_request_is_refused(bundle):
    with pytest.raises(AssertionError, match=r"--memory 1MiB is too little.*lower --max-body"):
        ModelServer(bundle, "--memory", "1MiB")


def test_a_type_that_the_protocol_has_no_name_for_is_refused(tmp_path, bundle):
    folder = shutil.copytree(bundle, tmp_path / "bundle")
    text = (folder / "manifest.json").read_text()
    (folder / "manifest.json").write_text(text.replace('"float32"', '"bfloat16"'))
    with pytest.raises(AssertionError, match="is bfloat16, which this server does not carry"):
        ModelServer(folder)
