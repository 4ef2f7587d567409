"""Manifests that are garbled, or written by somebody who means harm: each fault names its field."""

import json

import pytest

from collage.errors import BundleError
from collage.runtime.bundle_folder import MAX_READ_BYTES
from collage.runtime.json_fields import MAX_JSON_DEPTH
from collage.runtime.manifest import read_manifest

TENSOR = {"name": "x", "shape": [1, 8], "dtype": "float32"}
OUTPUT = {"name": "y", "shape": [1, -1], "dtype": "bfloat16"}
FUNCTION = {"function": "main", "inputs": [TENSOR], "outputs": [OUTPUT]}
MANIFEST = {
    "schema_version": 3,
    "gate": [{"function": "main", "verdict": "slower", "reason": "", "deterministic": True}],
    "executable": "model.so",
    "functions": [FUNCTION],
    "threads": 1,
    "cpu": {"model": "any", "features": ["sse2"]},
    "libraries": {"onnxruntime": {"distribution": "onnxruntime", "version": "1", "file": "*.so"}},
    "files": {"model.so": "0" * 64},
    "precision": {"reduced": True, "tolerance": 0.01, "probabilities": ["y"]},
    "quantised": False,
    "device": "cpu",
    "compute_capability": "",
}
GATE = MANIFEST["gate"][0]


def _input(**changes):
    return {"functions": [FUNCTION | {"inputs": [TENSOR | changes]}]}


def _output(**changes):
    return {"functions": [FUNCTION | {"outputs": [OUTPUT | changes]}]}


GARBLED = [
    ({"schema_version": None}, r"schema version of no known kind"),
    ({"schema_version": True}, r"schema version True"),
    ({"schema_version": [1]}, r"schema version of no known kind"),
    ({"executable": 7}, "executable is 7, where a text"),
    ({"executable": "../model.so"}, r"executable is '\.\./model\.so', where the name of a file"),
    ({"executable": ""}, "executable is '', where a text of 1"),
    ({"executable": ".."}, "executable is '..', where the name of a file"),
    ({"executable": "other.so"}, r"no digest of other\.so"),
    ({"functions": {}}, "functions is an object, where a list"),
    ({"functions": ["main"]}, r"functions\[0\] is 'main', where an object"),
    ({"functions": [FUNCTION, FUNCTION]}, "functions has the name 'main' twice"),
    ({"functions": [{"function": "main", "inputs": []}]}, r"functions\[0\]\.outputs is missing"),
    ({"functions": [FUNCTION | {"outputs": []}]}, r"functions\[0\]\.outputs is a list, where at"),
    ({"functions": [FUNCTION | {"inputs": [TENSOR] * 2}]}, "inputs has the name 'x' twice"),
    (_input(shape=[1, -1]), r"functions\[0\]\.inputs\[0\]\.shape\[1\] is -1, where a whole"),
    (_input(shape=None), r"inputs\[0\]\.shape is None, where a list"),
    (_input(shape="18"), r"inputs\[0\]\.shape is '18', where a list"),
    (_input(shape=[1, 8.0]), r"shape\[1\] is 8\.0, where a whole number"),
    (_input(shape=[True]), r"shape\[0\] is True, where a whole number"),
    (_input(shape=[2**40, 2**40]), r"shape is a list, where a shape of at most"),
    (_input(shape=[0] * 65), r"shape is a list, where a shape of at most"),
    (_input(dtype="float33"), r"dtype is 'float33', where one of bfloat16, bool"),
    (_input(dtype=["float32"]), r"dtype is a list, where a text"),
    (_input(name=""), r"name is '', where a text"),
    (_output(shape=[-2]), r"outputs\[0\]\.shape\[0\] is -2"),
    ({"threads": 0}, "threads is 0, where a whole number from 1"),
    ({"threads": "1"}, "threads is '1', where a whole number"),
    ({"threads": 10**9}, "threads is 1000000000, where a whole number"),
    ({"cpu": None}, "cpu is None, where an object"),
    ({"cpu": {"model": "any"}}, r"cpu\.features is missing"),
    ({"cpu": {"model": "any", "features": "sse2"}}, r"cpu\.features is 'sse2', where a list"),
    ({"cpu": {"model": "any", "features": [1]}}, r"cpu\.features\[0\] is 1, where a text"),
    ({"libraries": []}, "libraries is a list, where an object"),
    ({"libraries": {"onednn": "1"}}, r"libraries\.onednn is '1', where an object"),
    ({"libraries": {"onednn": {"version": "1"}}}, r"libraries\.onednn\.distribution is missing"),
    ({"files": ["model.so"]}, "files is a list, where an object"),
    ({"files": {"model.so": "g" * 64}}, r"files\.model\.so is .*, where a SHA-256"),
    ({"files": {"model.so": None}}, r"files\.model\.so is None, where a text"),
    ({"files": {"a/b": "0" * 64}}, "a name in files is 'a/b', where the name of a file"),
    ({"files": {"../x": "0" * 64}}, r"a name in files is '\.\./x'"),
    ({"precision": []}, "precision is a list, where an object"),
    ({"precision": {"reduced": 1}}, r"precision\.reduced is 1, where true or false"),
    (
        {"precision": {"reduced": True, "tolerance": -1, "probabilities": []}},
        r"precision\.tolerance is -1, where a number",
    ),
    ({"gate": None}, "gate is None, where a list"),
    ({"gate": ["slower"]}, r"gate\[0\] is 'slower', where an object"),
    (
        {"gate": [GATE | {"verdict": "fast"}]},
        r"gate\[0\]\.verdict is 'fast', where one of not slower",
    ),
    ({"gate": [GATE | {"deterministic": 1}]}, r"gate\[0\]\.deterministic is 1, where true or"),
    ({"quantised": "no"}, "quantised is 'no', where true or false"),
    ({"device": "tpu"}, "device is 'tpu', where one of cpu, cuda"),
    ({"compute_capability": 90}, "compute_capability is 90, where a text"),
]


@pytest.mark.parametrize(("changes", "message"), GARBLED)
def test_a_garbled_field_is_named(tmp_path, changes, message):
    (tmp_path / "manifest.json").write_text(json.dumps(MANIFEST | changes))
    with pytest.raises(BundleError, match=message):
        read_manifest(tmp_path)


@pytest.mark.parametrize("name", [name for name in MANIFEST if name != "schema_version"])
def test_fields_may_be_missing_where_they_have_a_default(tmp_path, name):
    document = {key: value for key, value in MANIFEST.items() if key != name}
    (tmp_path / "manifest.json").write_text(json.dumps(document))
    if name in ("precision", "quantised", "device", "compute_capability"):
        read_manifest(tmp_path)
        return
    with pytest.raises(BundleError, match=f"{name} is missing"):
        read_manifest(tmp_path)


DOCUMENTS = [
    (b"", "it is no JSON"),
    (b"[]", "the document is a list, where an object"),
    (b"null", "the document is None, where an object"),
    (b"\xff{}", "it is no JSON"),
    (b"[" * 100_000, "nested too deeply"),
    (b'{"a":' * (MAX_JSON_DEPTH + 1) + b"1" + b"}" * (MAX_JSON_DEPTH + 1), "nested more than"),
    (b'{"threads": NaN}', "NaN is no number"),
    (b'{"threads": ' + b"9" * 5000 + b"}", "it is no JSON: Exceeds the limit"),
    (b" " * (MAX_READ_BYTES + 1), "cannot be read"),
]


@pytest.mark.parametrize(("data", "message"), DOCUMENTS)
def test_a_document_is_bounded(tmp_path, data, message):
    (tmp_path / "manifest.json").write_bytes(data)
    with pytest.raises(BundleError, match=message):
        read_manifest(tmp_path)


def test_unknown_fields_are_ignored(tmp_path):
    extra = {"latency": {"collage": None}, "a_later_field": [1]}
    (tmp_path / "manifest.json").write_text(json.dumps(MANIFEST | extra))
    manifest = read_manifest(tmp_path)
    assert manifest.functions[0].outputs[0].shape == (1, -1)
    assert manifest.precision.probabilities == {"y"}
