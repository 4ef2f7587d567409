import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.helper import make_node as node

from collage.backends.base import BuildContext
from collage.backends.cpu.openvino import OpenVinoBackend, reason_in
from collage.errors import BackendError
from collage.frontend import import_model
from collage.measure.callable_kernel import as_tensors, callable_kernel
from collage.runtime import plugin
from collage.runtime.arrays import aligned_copy, aligned_empty
from tests.backends import regions
from tests.frontend.build import imported, model


@pytest.mark.parametrize("nodes", [0b1, 0b11, 0b110, 0b1100, 0b11111])
def test_regions_compute_the_same(nodes, tmp_path):
    regions.check_region(OpenVinoBackend(), regions.convolutions(tmp_path), nodes)


def test_it_takes_what_it_reads(tmp_path):
    function = regions.convolutions(tmp_path)
    reasons = [OpenVinoBackend().unsupported(function, node) for node in range(len(function.graph))]
    assert reasons == [None] * len(function.graph)


def test_it_says_why_not(tmp_path):
    function = regions.determinant(tmp_path)
    backend = OpenVinoBackend()
    assert [backend.unsupported(function, node) for node in range(2)] == [
        None,
        "OpenVINO has no Det",
    ]


def test_products_without_their_quantisation_are_refused(tmp_path):
    scale, zero = np.float32([0.01]), np.int8([0])
    document = model(
        [node("DynamicQuantizeMatMul", ["x", "w", "scale", "zero"], ["y"], domain="com.microsoft")],
        {"x": ("float32", (4, 8))},
        ["y"],
        {"w": np.ones((8, 3), np.int8), "scale": scale, "zero": zero},
        domains=["com.microsoft"],
    )
    reason = OpenVinoBackend().unsupported(imported(document, tmp_path), 0)
    assert reason == "OpenVINO computes DynamicQuantizeMatMul without quantising its input"


@pytest.mark.parametrize("operator", ["Div", "Mod"])
@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("int32", "OpenVINO divides int32 as float32"),
        ("int64", "OpenVINO divides int64 as float32"),
        ("int8", None),
    ],
)
def test_wide_integers_are_not_divided(tmp_path, operator, dtype, expected):
    document = model(
        [node(operator, ["x", "eleven"], ["y"])],
        {"x": (dtype, (4, 8))},
        ["y"],
        {"eleven": np.asarray(11, dtype)},
    )
    assert OpenVinoBackend().unsupported(imported(document, tmp_path), 0) == expected


def test_an_unknown_variant_is_refused(tmp_path):
    function = regions.determinant(tmp_path)
    with pytest.raises(BackendError, match="no variant 'fast'"):
        OpenVinoBackend().compile(function, 1, BuildContext(1), variant="fast")


POOLING = """Exception from src/inference/src/cpp/core.cpp:84:
Check 'false' failed at src/frontends/common_translators/src/unconverted_ops_report.cpp:151:
FrontEnd API failed with OpConversionFailure:
Model wasn't fully converted. Failed operations detailed log:
-- AveragePool-18 with a message:
While validating ONNX node '<Node(AveragePool): avg_pool2d>': Check 'cmp::le' failed at x.hpp:149:
Kernel after dilation has size (dim: 1280) larger than the data shape

Summary:
-- Conversion is failed for: AveragePool-18
"""
NO_RULE = "FrontEnd API failed:\nSummary:\n-- No conversion rule found for operations: Det-21\n"
REASONS = [
    (POOLING, "Kernel after dilation has size (dim: 1280) larger than the data shape"),
    (NO_RULE, "No conversion rule found for operations: Det-21"),
    ("", "no reason given"),
]


@pytest.mark.parametrize(("message", "reason"), REASONS)
def test_the_reason_is_found_in_the_message(message, reason):
    assert reason_in(message) == reason


def test_without_the_library_it_says_what_to_install(monkeypatch):
    monkeypatch.delenv("COLLAGE_LIB_OPENVINO", raising=False)
    absent = plugin.Library("not-installed", "libopenvino_c.so.*", "openvino>=2026.4,<2026.5")
    monkeypatch.setitem(plugin.LIBRARIES, "openvino", absent)
    availability = OpenVinoBackend().availability()
    assert not availability.available
    assert "pip install 'openvino>=2026.4,<2026.5'" in availability.reason


def test_a_path_that_does_not_exist_is_reported(monkeypatch):
    monkeypatch.setenv("COLLAGE_LIB_OPENVINO", "/nowhere/libopenvino_c.so")
    assert "COLLAGE_LIB_OPENVINO names /nowhere" in OpenVinoBackend().availability().reason


@pytest.mark.parametrize("wrong", [12, -13, 2**40])
def test_an_index_out_of_range_is_an_error(wrong, tmp_path):
    index = helper.make_tensor_value_info("i", TensorProto.INT64, (2, 2))
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, (2, 2, 4))
    table = numpy_helper.from_array(np.ones((12, 4), np.float32), "table")
    gather = helper.make_node("Gather", ["table", "i"], ["y"])
    graph = helper.make_graph([gather], "gather", [index], [result], [table])
    file = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(file, tmp_path / "model.onnx")
    function = import_model(tmp_path / "model.onnx", work_dir=tmp_path).functions[0]
    kernel = OpenVinoBackend().compile(function, 1, BuildContext(1))
    call, _ = callable_kernel(kernel, 1)
    output = aligned_empty((2, 2, 4), np.dtype("float32"))
    call(*as_tensors([aligned_copy(np.array([[0, 11], [-12, 3]])), output]))
    with pytest.raises(IndexError, match="the axis has 12 elements"):
        call(*as_tensors([aligned_copy(np.array([[0, 11], [wrong, 3]])), output]))
