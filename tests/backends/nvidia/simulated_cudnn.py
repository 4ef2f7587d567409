"""cuDNN's operation graphs on the simulated GPU: run by `test_simulated.py` in a process with it.

Kernels are prepared and checked like in a measuring worker.
"""

import os
from pathlib import Path

import numpy as np
import pytest
import tvm
import tvm_ffi

from collage.backends.nvidia.cudnn.graph_builder import CudnnGraphBuilder, channels_last, strides_of
from collage.runtime.blob import pack
from collage.runtime.plugin import load_plugin
from tests.backends.nvidia import cudnn_models as models
from tests.backends.nvidia.layer import TYPES

LOG = Path(os.environ["SIMULATED_GPU_LOG"])
ATTENTION = ((), (2, 1, 1, 6), (1, 3, 6, 6), (6, 6))


@pytest.fixture
def judge(judge):
    return lambda function, nodes, variant="": judge(function, nodes, "cudnn", variant)


def judge_all(judge, function, label):
    """Run every candidate; the largest one has the label."""
    assert models.largest(function).sub_graph.label == label
    for candidate in models.regions(function):
        assert judge(function, candidate.inside)[0] == "", candidate.sub_graph.label


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("activation", models.ACTIVATIONS)
@pytest.mark.parametrize("dtype", TYPES)
def test_convolutions_with_bias_residual_and_activation(tmp_path, judge, dtype, activation, group):
    function = models.convolution(tmp_path, dtype, activation, group)
    judge_all(judge, function, f"conv+residual+{activation}")
    assert "run cudnnConvolution" in LOG.read_text()


@pytest.mark.parametrize("dtype", TYPES)
def test_convolutions_over_one_dimension(tmp_path, judge, dtype):
    judge_all(judge, models.sequence_convolution(tmp_path, dtype), "conv+sigmoid")


@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.parametrize("mask", ATTENTION, ids=str)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_attention(tmp_path, judge, dtype, mask, turned):
    function = models.attention(tmp_path, dtype, mask, turned)
    assert {candidate.sub_graph.label for candidate in models.regions(function)} >= {"attention"}
    sizes = [candidate.inside.bit_count() for candidate in models.regions(function)]
    assert max(sizes) == len(function.graph)
    for candidate in models.regions(function):
        assert judge(function, candidate.inside)[0] == ""
    assert "run cudnnAttention" in LOG.read_text()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    "make",
    [models.layer_norm, models.layer_norm_with_bias, models.instance_norm, models.batch_norm,
     models.rms_norm],
)  # fmt: skip
def test_norms(tmp_path, judge, make, dtype):
    function = make(tmp_path, dtype)
    assert models.largest(function).inside.bit_count() == len(function.graph)
    for candidate in models.regions(function):
        assert judge(function, candidate.inside)[0] == ""


@pytest.mark.parametrize("dtype", TYPES)
def test_every_rank_is_another_engine_until_there_is_none(tmp_path, judge, dtype):
    """float32 excludes engines with TF32; engines with too much workspace are excluded."""
    function = models.convolution(tmp_path, dtype, "relu")
    nodes = models.largest(function).inside
    assert judge(function, nodes, "heuristic-2")[0] == ""
    reason = judge(function, nodes, "heuristic-3")[0]
    assert reason == "RuntimeError: cuDNN proposes 2 usable engines, so there is none of rank 2"


def test_a_graph_that_no_engine_takes_is_lost_with_cudnns_words(tmp_path, judge, monkeypatch):
    """Were the rule wrong: a fused activation channels-first, as no engine computes it."""
    monkeypatch.setattr(
        "collage.backends.nvidia.cudnn.convolution.channels_last", lambda rank: tuple(range(rank))
    )
    function = models.convolution(tmp_path, "float32", "swish")
    reason = judge(function, models.largest(function).inside)[0]
    assert reason.startswith("RuntimeError: cuDNN's heuristics propose 0 engines, and none is")


def test_what_only_rounding_engines_compute_is_lost(tmp_path, judge, monkeypatch):
    """In float32, channels last at both ends but not in between copies: TF32 alone would do."""
    function = models.convolution(tmp_path, "float32", "swish")
    monkeypatch.setattr("collage.backends.nvidia.cudnn.convolution.dtype_of", lambda *_: "float16")
    reason = judge(function, models.largest(function).inside)[0]
    assert "1 round more than allowed (TF32, sums in 16 bits)" in reason


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"strides": [1]}, "2 extents and 1 strides"),
        ({"shape": [2, 0]}, "an extent of a value is 0, not 1 to"),
        ({"dtype": "float64"}, "tensor 0 must hold 6 numbers of float64; it holds 6 of float32"),
        ({"role": "nothing"}, "no role nothing"),
        ({"place": 7}, "there is no argument 7"),
    ],
)
def test_a_blob_that_makes_no_sense_is_refused(change, words):
    values = [
        {"role": role, "dtype": "float32", "shape": [2, 3], "strides": [3, 1], "place": 0}
        for role in ("input", "output")
    ]
    values[0] |= change
    operation = {"op": "pointwise", "mode": "relu", "x": 0, "y": 1}
    header = {"values": values, "graphs": [{"operations": [operation]}], "inputs": 1}
    with pytest.raises((RuntimeError, ValueError), match=words):
        run_relu(pack({**header, "outputs": 1}, []))


def run_relu(blob):
    load_plugin()
    module = tvm_ffi.get_global_func("collage.create_module")("cudnn", "kernel", blob)
    device = tvm.runtime.device("cuda", 0)
    tensors = [tvm.runtime.empty((2, 3), "float32", device) for _ in range(2)]
    module.get_function("kernel")(*tensors)


def test_a_region_says_strides_and_constants(tmp_path):
    function = models.layer_norm(tmp_path, "float32")
    region = CudnnGraphBuilder(function, 1)
    constant = region.constant(np.arange(24).reshape(1, 2, 3, 4), channels_last(4))
    entry = region.header("float32")["values"][constant]
    assert entry["strides"] == strides_of((1, 2, 3, 4), (0, 2, 3, 1)) == [24, 1, 8, 2]
    assert region.constants[0].shape == (1, 3, 4, 2)
