import numpy as np
import onnx
import pytest

from collage.backends.base import BuildContext
from collage.backends.cpu.onnxruntime import OnnxRuntimeBackend
from collage.errors import BackendError
from collage.frontend import onnxruntime_session
from collage.frontend.region import region_values
from collage.graph.index_set import indices
from collage.rules.candidates import find_candidates
from collage.runtime import plugin
from tests.backends import regions
from tests.frontend.build import floats, imported
from tests.runtime.executables import call_kernel


@pytest.mark.parametrize("nodes", [0b1, 0b11, 0b110, 0b1100, 0b11111])
@pytest.mark.parametrize("variant", OnnxRuntimeBackend.variants)
def test_regions_compute_the_same(nodes, variant, tmp_path):
    regions.check_region(OnnxRuntimeBackend(), regions.convolutions(tmp_path), nodes, variant)


def test_it_takes_every_operator(tmp_path):
    function = regions.determinant(tmp_path)
    assert [OnnxRuntimeBackend().unsupported(function, node) for node in range(2)] == [None, None]


def test_the_second_variant_is_for_convolutions(tmp_path):
    function = regions.convolutions(tmp_path)
    candidates = find_candidates(function, [OnnxRuntimeBackend()])
    convolutions = {i for i, node in enumerate(function.graph.nodes) if node.op == "Conv"}
    second = [candidate for candidate in candidates if candidate.variant == "extended"]
    assert second
    assert all(convolutions & set(indices(candidate.inside)) for candidate in second)
    assert len(second) < len([candidate for candidate in candidates if candidate.variant == ""])


SHAPE_CHECK = """<ir_version: 9, opset_import: ["" : 17]>
main (float[5,1,2,3] x, bool squeezes) => (float[5,1,1,4] y)
<float[1,16,3] w, float[1,16,4] r>
{
    y = If (squeezes) <
        then_branch = narrow () => (float[5,1,1,4] a) {
            whole = Shape (x)
            numbers = Cast <to = 1> (whole)
            roots = Sqrt (numbers)
            squares = Mul (roots, roots)
            rounded = Round (squares)
            target = Cast <to = 7> (rounded)
            rows = Reshape (x, target)
            dimensions = Shape (rows)
            two = Constant <value_int = 2> ()
            one = Constant <value_int = 1> ()
            width = Gather <axis = 0> (dimensions, two)
            is_one = Equal (width, one)
            axis = Constant <value_ints = [2]> ()
            steps = If (is_one) <
                then_branch = squeezed () => (s) { s = Squeeze (rows, axis) },
                else_branch = kept () => (k) { k = Identity (rows) }>
            a = LSTM <hidden_size = 4> (steps, w, r) },
        else_branch = wide () => (float[5,1,1,4] b) {
            mean = ReduceMean <axes = [2], keepdims = 0> (x)
            b = LSTM <hidden_size = 4> (mean, w, r) }>
}
"""
"""A branch for inputs with one row, as exporters write shape checks; these have two."""


def test_a_branch_for_other_shapes_does_not_refuse_a_region(tmp_path):
    proto = onnx.parser.parse_model(SHAPE_CHECK)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(floats(1, 16, 3), "w"))
    proto.graph.initializer.append(onnx.numpy_helper.from_array(floats(1, 16, 4, seed=2), "r"))
    function = imported(proto, tmp_path)
    everything = function.graph.everything
    kernel = OnnxRuntimeBackend().compile(function, everything, BuildContext(1))
    x, y = floats(5, 1, 2, 3), np.empty((5, 1, 1, 4), np.float32)
    feeds = {"x": x, "squeezes": np.array(False)}
    call_kernel(
        kernel.kind,
        kernel.blob,
        [feeds[name] for name in region_values(function, everything)[0]],
        [y],
    )
    whole = onnxruntime_session.session(tmp_path / "model.onnx")
    (expected,) = whole.run(None, feeds)
    np.testing.assert_allclose(y, expected, rtol=1e-5)


def test_an_unknown_variant_is_refused(tmp_path):
    function = regions.determinant(tmp_path)
    with pytest.raises(BackendError, match="no variant 'fast'"):
        OnnxRuntimeBackend().compile(function, 1, BuildContext(1), variant="fast")


def test_versions_are_part_of_the_identity():
    version = plugin.library_version("onnxruntime")
    assert OnnxRuntimeBackend().identity == f"onnxruntime onnxruntime={version}"


def test_without_the_library_it_says_what_to_install(monkeypatch):
    monkeypatch.delenv("COLLAGE_LIB_ONNXRUNTIME", raising=False)
    absent = plugin.Library("not-installed", "libonnxruntime.so.*", "onnxruntime>=1.31,<1.32")
    monkeypatch.setitem(plugin.LIBRARIES, "onnxruntime", absent)
    availability = OnnxRuntimeBackend().availability()
    assert not availability.available
    assert "pip install 'onnxruntime>=1.31,<1.32'" in availability.reason
