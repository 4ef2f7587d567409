"""Functions of one executable hold their equal weights once, on disk and in memory."""

import json
import struct
import subprocess
import sys
from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
import tvm_ffi

from benchmarks.weight_heavy import PRODUCTS, product_model
from collage.assemble import assemble
from collage.assemble.shared_kernels import share_kernels
from collage.assemble.shared_weights import MIN_BYTES, link_weights
from collage.runtime.blob import pack
from collage.runtime.plugin import load_plugin
from tests.assemble.products import build, imported, opened, whole_plan

BACKENDS = ("onnxruntime", "openvino", "onednn")
WIDTH = 256
WEIGHT_BYTES = PRODUCTS * WIDTH * WIDTH * 4
ROWS = (1, 3)


@pytest.fixture(scope="module")
def functions(tmp_path_factory):
    folder = tmp_path_factory.mktemp("products")
    file = product_model(folder / "products.onnx", WIDTH)
    return file, imported(file, WIDTH, ROWS, folder).functions


@pytest.mark.parametrize("backend", BACKENDS)
def test_equal_weights_are_in_the_executable_once(functions, tmp_path, backend):
    _, both = functions
    alone = build(both[:1], backend, tmp_path / "alone.so").stat().st_size
    together = build(both, backend, tmp_path / "together.so").stat().st_size
    assert alone > WEIGHT_BYTES
    assert together < alone + WEIGHT_BYTES / 4


@pytest.mark.parametrize("backend", BACKENDS)
def test_shared_weights_change_no_number(functions, tmp_path, backend):
    file, both = functions
    original = onnxruntime.InferenceSession(file)
    together = opened(build(both, backend, tmp_path / "together.so"), both)
    for place, rows in enumerate(ROWS):
        x = np.random.default_rng(rows).standard_normal((rows, WIDTH)).astype(np.float32)
        alone = opened(
            build(both[place : place + 1], backend, tmp_path / f"{rows}.so"), [both[place]]
        )
        (expected,) = alone.run({"x": x}).values()
        (outputs,) = together.run({"x": x}).values()
        np.testing.assert_array_equal(outputs, expected)
        np.testing.assert_allclose(outputs, original.run(None, {"x": x})[0], 1e-4, 1e-4)


def test_weights_of_one_function_stay_in_its_kernels(functions):
    plans, table = link_weights([whole_plan(functions[1][0], "onnxruntime")])
    assert not table.weights
    assert plans == [whole_plan(functions[1][0], "onnxruntime")]


def test_a_kernel_of_all_functions_is_linked_too(functions, tmp_path):
    """The original model as the plan of both functions is one kernel."""
    _, both = functions
    kernel = whole_plan(both[0], "onnxruntime").kernels[0].kernel
    plans = share_kernels([
        replace(plan, kernels=(replace(plan.kernels[0], kernel=kernel),))
        for plan in (whole_plan(function, "onnxruntime") for function in both)
    ])  # fmt: skip
    assert len(link_weights(plans)[1].weights) == PRODUCTS
    assemble(plans, 1, tmp_path / "shared.so")
    x = np.ones((ROWS[0], WIDTH), np.float32)
    alone = opened(build(both[:1], "onnxruntime", tmp_path / "alone.so"), both[:1])
    (expected,) = alone.run({"x": x}).values()
    (outputs,) = opened(tmp_path / "shared.so", both[:1]).run({"x": x}).values()
    np.testing.assert_array_equal(outputs, expected)


def test_small_weights_stay_in_their_kernels(tmp_path):
    width = 16
    assert width * width * 4 < MIN_BYTES
    file = product_model(tmp_path / "small.onnx", width)
    both = imported(file, width, ROWS, tmp_path).functions
    _, table = link_weights([whole_plan(function, "onednn") for function in both])
    assert not table.weights


def _linked(count, *links, others=b""):
    parts = [digest + struct.pack("<QQ", offset, size) for digest, offset, size in links]
    return b"COLLAGEL" + struct.pack("<Q", count) + b"".join(parts) + others


DIGEST = bytes(32)
DAMAGED = [
    (b"COLLAGEL", "damaged"),
    (_linked(1), "damaged"),
    (_linked(1 << 60), "damaged"),
    (_linked(1, (DIGEST, 8, 16)), "damaged"),
    (_linked(1, (DIGEST, 1 << 62, 16), others=bytes(64)), "damaged"),
    (_linked(1, (DIGEST, 8, 16), others=bytes(64)), "lacks a weight"),
    (_linked(0, others=b"COLLAGE0"), "not a kernel blob"),
]


@pytest.mark.parametrize(("blob", "message"), DAMAGED)
def test_damaged_links_are_an_error(blob, message):
    load_plugin()
    module = tvm_ffi.get_global_func("collage.create_module")("onednn", "kernel", blob)
    with pytest.raises(ValueError, match=message):
        module.get_function("kernel")


def test_a_blob_without_links_may_be_written_as_linked():
    load_plugin()
    blob = _linked(0, others=pack({}, []))
    module = tvm_ffi.get_global_func("collage.create_module")("onnxruntime", "kernel", blob)
    with pytest.raises(ValueError, match="holds no ONNX model"):
        module.get_function("kernel")


MEASURE = """
import json, sys
from pathlib import Path
import numpy as np
from collage.runtime.manifest import read_signature
from collage.runtime.session import ExecutableSession

file, width, *rows = sys.argv[1:]
tensor = lambda name, n: {"name": name, "shape": [int(n), int(width)], "dtype": "float32"}
functions = [
    read_signature({"function": name, "inputs": [tensor("x", n)], "outputs": [tensor("y", n)]})
    for name, n in zip(("main", "main_1"), rows)
]
session = ExecutableSession(Path(file), tuple(functions), 1)
for n in rows:
    session.run({"x": np.ones((int(n), int(width)), np.float32)})
pages = {line.split(":")[0]: line for line in Path("/proc/self/status").read_text().splitlines()}
print(json.dumps(int(pages["VmRSS"].split()[1]) * 1024))
"""


def _rss_bytes(file, width, rows):
    command = [sys.executable, "-c", MEASURE, file, str(width), *map(str, rows)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


@pytest.mark.full
@pytest.mark.parametrize("backend", ["onnxruntime", "onednn"])
def test_a_second_function_takes_no_memory_for_weights(tmp_path, backend):
    width = 1024
    weight_bytes = PRODUCTS * width * width * 4
    file = product_model(tmp_path / "products.onnx", width)
    both = imported(file, width, ROWS, tmp_path).functions
    alone = _rss_bytes(build(both[:1], backend, tmp_path / "alone.so"), width, ROWS[:1])
    together = _rss_bytes(build(both, backend, tmp_path / "together.so"), width, ROWS)
    assert together < alone + weight_bytes / 2
