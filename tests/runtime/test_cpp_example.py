"""The C++ example serves a bundle in a process without Python."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tvm_ffi
from onnx.helper import make_node as node

import collage
from collage.runtime.plugin import LIBRARY_FOLDER, library_path
from collage.store.statement import SignedModel, sign_bundle
from tests.frontend.build import model, save
from tests.runtime.conftest import write_manifest
from tests.support import original_models
from tests.support.keys import make_key
from tests.support.other_shapes import add_ways

SOURCE = Path(__file__).parents[2] / "examples" / "cpp"


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The example, built."""
    folder = tmp_path_factory.mktemp("example")
    packages = Path(tvm_ffi.__file__).parent
    options = [
        f"-DTVM_FFI_DIR={packages}",
        "-DCMAKE_BUILD_TYPE=Debug",
    ]  # built in a third of the time
    configure = ["cmake", "-S", SOURCE, "-B", folder, *options]
    subprocess.run(configure, check=True, capture_output=True)
    subprocess.run(["cmake", "--build", folder, "--parallel", "2"], check=True, capture_output=True)
    return folder / "serve_bundle"


def _environment():
    names = ("onnxruntime", "openvino")
    return {f"COLLAGE_LIB_{name.upper()}": str(library_path(name)) for name in names}


@pytest.mark.full
def test_outputs_whose_shape_depends_on_data(server, tmp_path):
    nodes = [node("Relu", ["x"], ["r"]), node("NonZero", ["r"], ["n"])]
    bundle = model(nodes, {"x": ("float32", (2, 8))}, ["n", "r"])
    options = collage.Options(
        threads=1,
        cache_dir=tmp_path / "store",
        verify_s=0.1,
        measure_budget_s=5,
        allow_slower=True,
    )
    collage.compile(save(bundle, tmp_path), options, output=tmp_path / "bundle")
    np.arange(-8, 8, dtype="float32").tofile(tmp_path / "x.bin")
    command = [server, LIBRARY_FOLDER, tmp_path / "bundle", tmp_path / "x.bin"]
    done = subprocess.run(command, env=_environment(), capture_output=True, text=True, check=True)
    # 7 places of 2 int64: row 1, columns 1 to 7.
    assert "112 bytes  checksum 35" in done.stdout
    assert "64 bytes  checksum 28" in done.stdout


def test_the_example_serves_a_bundle(server, bundle, tmp_path):
    np.arange(-4, 4, dtype="float32").tofile(tmp_path / "x.bin")
    command = [server, LIBRARY_FOLDER, bundle, tmp_path / "x.bin"]
    done = subprocess.run(command, env=_environment(), capture_output=True, text=True, check=True)
    assert "checksum 6" in done.stdout
    done = subprocess.run(command, env={}, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'onnxruntime" in done.stderr


def test_the_example_runs_the_named_entry(server, copy):
    functions = json.loads((copy / "manifest.json").read_text())["functions"]
    functions[1]["entry"] = "decoder"
    write_manifest(copy, functions=functions)
    done = _serve(server, copy, "--entry", "decoder")
    assert "64 bytes  checksum 8" in done.stdout, done.stderr
    assert "32 bytes  checksum 4" in _serve(server, copy, "--entry", "main").stdout
    _refused(_serve(server, copy, "--entry", "other"), "no entry 'other', only main decoder")


WAYS = [
    ("x=2,8", "exact main_1", "64 bytes  checksum 8"),
    ("x=1,8", "padded main_1", "32 bytes  checksum 4"),
    ("x=5,2", "fallback onnxruntime", "40 bytes  checksum 2.5"),
]


def test_the_example_answers_every_shape(server, copy):
    """The fallback squares, where the functions are relu: the numbers tell the way."""
    add_ways(copy, original_models.square_model(copy / "original.onnx"))
    for shape, way, output in WAYS:
        done = _serve(server, copy, "--shape", shape)
        assert way in done.stdout, done.stderr
        assert output in done.stdout


def test_the_example_pads_its_own_numbers(server, copy, tmp_path):
    add_ways(copy, original_models.square_model(copy / "original.onnx"))
    np.arange(-4, 4, dtype="float32").tofile(tmp_path / "x.bin")
    command = [server, "--shape", "x=1,8", LIBRARY_FOLDER, copy, tmp_path / "x.bin"]
    done = subprocess.run(command, env=_environment(), capture_output=True, text=True, check=True)
    assert "32 bytes  checksum 6" in done.stdout


def test_the_example_refuses_shapes_without_a_way(server, copy):
    _refused(_serve(server, copy, "--shape", "x=5,2"), "takes the shapes x=1,8 x=2,8")
    _refused(_serve(server, copy, "--shape", "z=5,2"), "the entry has no input 'z'")
    _refused(_serve(server, copy, "--shape", "x=5,-2"), "'5,-2' is no shape")
    _refused(_serve(server, copy, "--shape", "x"), "write it as x=1,3,8")


@pytest.fixture
def copy(bundle, tmp_path):
    folder = tmp_path / "copy"
    folder.mkdir()
    for file in bundle.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def _serve(server, folder, *options):
    return subprocess.run(
        [server, *options, LIBRARY_FOLDER, folder],
        env=_environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip


def _refused(done, message):
    assert (done.returncode, done.stdout) == (1, "")
    assert message in done.stderr


TENSOR = {"name": "x", "shape": [1, 8], "dtype": "float32"}
FUNCTION = {"function": "main", "inputs": [TENSOR], "outputs": [TENSOR]}
UNFIT = [
    ({"schema_version": 1}, "schema version 1; this program reads"),
    ({"schema_version": "3"}, "'schema_version' is of another type"),
    ({"executable": "../copy/model.so"}, "is no name of a bundle's file"),
    ({"executable": "other.so"}, "the field 'other.so' is missing"),
    ({"files": {"model.so": "0" * 64}}, "model.so was changed after the bundle was made"),
    ({"threads": 0}, "the field 'threads' is wrong"),
    ({"device": "cuda"}, "the bundle is for a GPU"),
    ({"functions": []}, "has no functions"),
    ({"functions": [FUNCTION | {"inputs": [TENSOR | {"shape": [2**62, 8]}]}]}, "holds no size"),
    ({"functions": [FUNCTION | {"inputs": [TENSOR | {"shape": [2**40] * 2}]}]}, "is too large"),
    ({"functions": [FUNCTION | {"inputs": [TENSOR | {"dtype": "float33"}]}]}, "is unknown"),
    ({"cpu": {"model": "A Mill", "features": ["sse2", "steam"]}}, "lacks steam; the bundle"),
    (
        {"libraries": {"onnxruntime": {"distribution": "onnxruntime", "version": "1.0"}}},
        "but 1.0 was measured",
    ),
    (
        {"libraries": {"openvino": {"distribution": "openvino", "version": "1.0"}}},
        "but 1.0 was measured",
    ),
]


def test_the_example_refuses_what_does_not_fit(server, copy):
    for changes, message in UNFIT:
        write_manifest(copy, **changes)
        _refused(_serve(server, copy), message)
    for text, message in (("", "no JSON object"), ("[" * 100_000, "nested too deeply")):
        (copy / "manifest.json").write_text(text)
        _refused(_serve(server, copy), message)


def test_the_example_follows_no_link(server, copy):
    target = (copy / "model.so").rename(copy / "kept")
    (copy / "model.so").symlink_to(target)
    _refused(_serve(server, copy), "cannot open")


def test_the_example_verifies_signatures(server, copy, tmp_path):
    ours, theirs = make_key(tmp_path), make_key(tmp_path, "theirs")
    _refused(_serve(server, copy, "--key", ours.public), "the bundle is not signed")
    sign_bundle(copy, ours.signer, SignedModel("relu", "1"))
    assert _serve(server, copy, "--key", theirs.public, "--key", ours.public).returncode == 0
    _refused(_serve(server, copy, "--key", theirs.public), "no key that was given signed it")
    _refused(_serve(server, copy, "--key", ours.private), "is no public Ed25519 key")
    (statement,) = copy.glob("statement.*")
    envelope = statement.read_text()
    document = json.loads(envelope)
    document["signatures"][0]["sig"] = "A" * 86 + "=="
    statement.write_text(json.dumps(document))
    _refused(_serve(server, copy, "--key", ours.public), "no key that was given signed it")
    statement.write_text(envelope)
    (copy / "manifest.json").write_text("{")  # which is not parsed
    _refused(_serve(server, copy, "--key", ours.public), "it is of another manifest")


def test_the_example_says_that_nobody_was_asked(server, bundle):
    done = _serve(server, bundle)
    assert done.returncode == 0
    assert "nobody was asked who made the bundle" in done.stderr
