import pytest

from collage.backends.base import BuildContext
from collage.backends.cpu.onnxruntime import OnnxRuntimeBackend
from collage.errors import BackendError
from collage.graph.index_set import indices
from collage.rules.candidates import find_candidates
from collage.runtime import plugin
from tests.backends import regions


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
