"""Bundles that serve, and bundles that must be refused."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import collage
from collage.errors import BundleError, InputError, UnprovenError
from collage.runtime.loader import load
from collage.runtime.manifest import read_manifest, refuse_unproven
from tests.runtime.conftest import SHAPES, gate_entry, tensor, write_manifest


def test_shapes_choose_the_function(bundle):
    loaded = load(bundle)
    for shape in SHAPES.values():
        x = np.random.default_rng(2).standard_normal(shape).astype("float32")
        np.testing.assert_array_equal(loaded.run({"x": x})["y"], np.maximum(x, 0))


ENTRIES = {"main": "encoder", "main_1": "decoder"}


@pytest.fixture
def two_entries(copy):
    """The bundle with an entry of its own for each function."""
    functions = json.loads((copy / "manifest.json").read_text())["functions"]
    write_manifest(
        copy, functions=[entry | {"entry": ENTRIES[entry["function"]]} for entry in functions]
    )
    return load(copy)


def test_the_entry_chooses_the_function(two_entries):
    assert two_entries.entries == ("encoder", "decoder")
    for (name, shape), entry in zip(SHAPES.items(), ENTRIES.values(), strict=True):
        x = np.random.default_rng(3).standard_normal(shape).astype("float32")
        for outputs in (
            two_entries.run({"x": x}, entry=entry),
            {"y": two_entries.run_tensors({"x": x}, entry=entry)["y"].numpy()},
        ):
            np.testing.assert_array_equal(outputs["y"], np.maximum(x, 0))
        assert two_entries.benchmark(0.01, name) > 0
    two_entries.check()
    two_entries.copy().check()


@pytest.mark.parametrize(
    ("entry", "side", "message"),
    [
        (None, 1, "name one of the bundle's entries, entry='encoder' or 'decoder'"),
        ("main", 1, "there is no entry 'main': name one of"),
        ("encoder", 2, r"takes the shapes \(x: \[2, 8\]\); expected \(x: float32\[1, 8\]\)$"),
    ],
)
def test_another_entry_is_refused(two_entries, entry, side, message):
    with pytest.raises(InputError, match=message):
        two_entries.run({"x": np.zeros((side, 8), "float32")}, entry)


def test_the_only_entry_needs_no_name(bundle):
    x = np.ones((1, 8), "float32")
    np.testing.assert_array_equal(load(bundle).run({"x": x}, entry="main")["y"], x)


def test_outputs_belong_to_the_caller(bundle):
    loaded = load(bundle)
    first = loaded.run({"x": np.full((1, 8), 1, "float32")})["y"]
    loaded.run({"x": np.full((1, 8), 2, "float32")})
    assert (first == 1).all()
    first[...] = 5


def test_inputs_need_not_be_contiguous_or_writable(bundle):
    x = np.arange(32, dtype="float32")[::2].reshape(2, 8)
    x.flags.writeable = False
    np.testing.assert_array_equal(load(bundle).run({"x": x})["y"], x)


def test_check_and_benchmark(bundle):
    loaded = load(bundle)
    loaded.check()
    assert 0 < loaded.benchmark(0.05) < 1


WRONG_INPUTS = [
    ({}, r"missing input 'x'; expected x: float32\[1, 8\]"),
    ({"z": np.zeros((1, 8), "float32")}, "unknown input 'z', missing input 'x'"),
    (
        {"x": np.zeros((3, 8), "float32")},
        r"\(x: \[3, 8\]\); expected .*\[1, 8\]\) or .*\[2, 8\]",
    ),
    ({"x": np.zeros((1, 8))}, r"dtype float64; expected float32"),
]


@pytest.mark.parametrize(("inputs", "message"), WRONG_INPUTS)
def test_wrong_inputs_say_what_is_expected(bundle, inputs, message):
    loaded = load(bundle)
    with pytest.raises(InputError, match=message):
        loaded.run(inputs)


@pytest.fixture
def copy(bundle, tmp_path):
    for file in bundle.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def test_every_changed_byte_is_noticed(copy):
    content = bytearray((copy / "model.so").read_bytes())
    content[len(content) // 2] ^= 1
    (copy / "model.so").write_bytes(content)
    with pytest.raises(BundleError, match=r"model\.so was changed"):
        load(copy)


REFUSED = [
    ({"cpu": {"model": "A Mill", "features": ["sse2", "steam"]}}, "lacks steam.*A Mill"),
    (
        {"libraries": {"onnxruntime": {"distribution": "onnxruntime", "version": "1.0"}}},
        "pip install 'onnxruntime==1.0'",
    ),
    (
        {"libraries": {"onnxruntime": {"distribution": "onnxruntime-gpu", "version": "1.0"}}},
        "is that of onnxruntime here, not of onnxruntime-gpu",
    ),
    ({"schema_version": 99}, "schema version 99"),
    ({"threads": None}, "threads is None, where a whole number"),
    ({"files": {}}, "no digest of model.so"),
    ({"functions": []}, "has no functions"),
    ({"files": {"model.so": "0" * 64}}, "was changed"),
    ({"files": {"absent.bin": "0" * 64, "model.so": "0" * 64}}, "cannot be read: No such file"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_unfit_bundles_are_refused_with_the_reason(copy, changes, message):
    write_manifest(copy, **changes)
    with pytest.raises(BundleError, match=message):
        load(copy)


@pytest.mark.parametrize("content", [None, "", "[]", "{"])
def test_no_manifest_no_bundle(copy, content):
    (copy / "manifest.json").unlink()
    if content is not None:
        (copy / "manifest.json").write_text(content)
    with pytest.raises(BundleError, match=r"manifest\.json"):
        load(copy)


def random_entries(**changes):
    """Build what a manifest says of functions that draw random numbers."""
    return [gate_entry(name) | {"deterministic": False} | changes for name in SHAPES]


def test_random_numbers_are_checked_by_shape_and_dtype(copy):
    """The golden data of `y` is what another call drew."""
    with np.load(copy / "golden.npz") as stored:
        golden = {name: stored[name] + ("output" in name) for name in stored.files}
    np.savez(copy / "golden.npz", **golden)
    write_manifest(copy, gate=random_entries())
    load(copy).check()
    outputs = [{"name": "y", "shape": None, "dtype": "float64"}]
    functions = [
        {"function": name, "inputs": [tensor("x", shape)], "outputs": outputs}
        for name, shape in SHAPES.items()
    ]
    write_manifest(copy, gate=random_entries(), functions=functions)
    message = r"output y is float32\[1, 8\], expected y: float64\[\.\.\.\]"
    with pytest.raises(BundleError, match=message):
        load(copy).check()


@pytest.mark.parametrize(
    ("gate", "reason"),
    [
        ([gate_entry("main"), gate_entry("main_1", "slower")], "main_1 is slower: a test"),
        ([gate_entry("main", "unproven"), gate_entry("main_1")], "main is unproven: a test"),
        ([gate_entry("main")], "main_1 was not judged"),
        ([], "main was not judged; main_1 was not judged"),
    ],
)
def test_what_is_not_proven_is_refused_with_a_way_on(copy, gate, reason):
    write_manifest(copy, gate=gate)
    with pytest.raises(UnprovenError, match=f"{reason}.*longer --verify") as refused:
        refuse_unproven(read_manifest(copy), "the bundle")
    assert refused.value.exit_code == 4
    load(copy).check()  # it runs all the same


def test_what_is_proven_is_not_refused(copy):
    refuse_unproven(read_manifest(copy), "the bundle")


def test_other_numbers_fail_the_self_check(copy):
    with np.load(copy / "golden.npz") as stored:
        golden = {name: stored[name] + ("output" in name) for name in stored.files}
    np.savez(copy / "golden.npz", **golden)
    write_manifest(copy)
    loaded = load(copy)
    with pytest.raises(BundleError, match="output y differs"):
        loaded.check()


SERVE = """
import sys
from pathlib import Path
import collage
collage.load(sys.argv[1]).check()
packages = {"tvm", "onnx", "onnxruntime", "openvino", "pydantic", "rich"}
print(sorted(packages & set(sys.modules)))
"""


def test_serving_imports_no_compiler_and_no_vendor_package(bundle):
    done = subprocess.run(
        [sys.executable, "-c", SERVE, str(bundle)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


RUNTIME_EXTRA = (
    "numpy*", "tvm_ffi", "apache_tvm_ffi-*", "typing_extensions*", "onnxruntime", "onnxruntime-*",
    "openvino", "openvino-*",
)  # fmt: skip

WITHOUT_COMPILER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import collage
collage.load(sys.argv[1]).check()
print("served")
"""


def test_serving_needs_the_runtime_extra_alone(bundle, tmp_path):
    installed = Path(np.__file__).parents[1]
    for pattern in RUNTIME_EXTRA:
        for entry in installed.glob(pattern):
            (tmp_path / entry.name).symlink_to(entry)
    (tmp_path / "collage").symlink_to(Path(collage.__file__).parent)
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", WITHOUT_COMPILER, str(bundle), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "served", done.stderr
