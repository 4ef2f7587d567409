"""The real cuDNN's engines for the candidates' graphs, for an absent H200.

Run by `test_cudnn_engines.py`. cuDNN plans for a described device and compiles engines with
NVRTC; nothing is executed.
"""

from pathlib import Path

import pytest
import tvm_ffi

from collage.backends.base import BuildContext
from collage.backends.nvidia.cudnn import VARIANTS, CudnnBackend
from collage.runtime.blob import unpack
from collage.runtime.plugin import load_plugin
from tests.backends.nvidia import cudnn_models as models
from tests.backends.nvidia.layer import TYPES

H200 = (Path(__file__).parent / "h200.json").read_text()
NORMS = (models.layer_norm, models.layer_norm_with_bias, models.rms_norm, models.instance_norm)


def proposals(function, nodes, limit=1, variant=""):
    """Usable engines of each graph of a region: numbers, workspaces and numerical notes."""
    load_plugin()
    blob = CudnnBackend().compile(function, nodes, BuildContext(1), variant).blob
    counts = tvm_ffi.get_global_func("collage.cudnn_proposals")(blob, H200, limit)
    header, _ = unpack(blob)
    assert len(counts) == sum("operations" in graph for graph in header["graphs"])
    return [[str(line).split() for line in graph] for graph in counts]


@pytest.mark.parametrize("group", [1, 2, 8])
@pytest.mark.parametrize("activation", models.ACTIVATIONS)
@pytest.mark.parametrize("dtype", TYPES)
def test_every_convolution_has_an_engine(tmp_path, dtype, activation, group):
    """A depthwise one in bfloat16 has its activation apart: cuDNN refuses both as one."""
    function = models.convolution(tmp_path, dtype, activation, group)
    for candidate in models.holding(function, "Conv"):
        ((engine, *_),) = proposals(function, candidate.inside)
        if dtype == "float32":
            assert "0" not in engine[2:], "tensor cores round float32 to TF32"


@pytest.mark.parametrize("activation", models.ACTIVATIONS)
def test_dense_convolutions_have_an_engine_for_tf32(tmp_path, activation):
    function = models.convolution(tmp_path, "float32", activation)
    for candidate in models.regions(function):
        ((engine, *_),) = proposals(function, candidate.inside, variant="tf32")
        assert "0" in engine[2:], "an engine that does not round is another variant's"


def test_three_dimensions_have_one_for_tf32(tmp_path):
    function = models.volume_convolution(tmp_path, "float32")
    assert proposals(function, function.graph.everything, variant="tf32")


@pytest.mark.parametrize("dtype", TYPES)
def test_convolutions_over_one_dimension_and_variants(tmp_path, dtype):
    function = models.sequence_convolution(tmp_path, dtype)
    for candidate in models.regions(function):
        assert proposals(function, candidate.inside, len(VARIANTS))


@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.parametrize("mask", [(), (2, 1, 1, 6), (1, 3, 6, 6), (6, 6)], ids=str)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_attention_has_an_engine(tmp_path, dtype, mask, turned):
    function = models.attention(tmp_path, dtype, mask, turned)
    for candidate in models.holding(function, "MatMul"):
        assert proposals(function, candidate.inside)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("make", NORMS)
def test_norms_have_an_engine(tmp_path, dtype, make):
    function = make(tmp_path, dtype)
    for candidate in models.regions(function):
        assert proposals(function, candidate.inside)


def test_a_graph_without_an_engine_is_refused_in_words(tmp_path, monkeypatch):
    """A fused activation channels-first; the rules avoid it by copies."""
    monkeypatch.setattr(
        "collage.backends.nvidia.cudnn.convolution.channels_last", lambda rank: tuple(range(rank))
    )
    function = models.convolution(tmp_path, "float32", "swish")
    with pytest.raises(RuntimeError, match="propose 0 engines, and none is usable"):
        proposals(function, models.largest(function).inside)
