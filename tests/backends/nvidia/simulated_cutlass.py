"""CUTLASS's sources on the simulated GPU: run by `test_simulated.py` in a process with it.

The templates are a double (`tests/simulated_gpu/cutlass.h`), with the real ones' arguments. The
copies around a convolution, the weights, the memory and the way into an executable are the real ones.
"""

import pytest
from onnx import helper

from collage.rules import find_candidates
from tests.backends.nvidia import cudnn_models as models
from tests.backends.nvidia.gpu_log import _log, logged  # noqa: F401
from tests.backends.nvidia.layer import TYPES, layer
from tests.backends.nvidia.plans import BACKENDS, check, plan_of, windows
from tests.backends.regions import _function, _weight, convolutions

CUTLASS = BACKENDS["cutlass"]


def judge_all(judge, function, variants=("",)):
    """Run every region on the variants; return the labels."""
    candidates = find_candidates(function, [CUTLASS], may_reduce=True)
    chosen = [
        candidate
        for candidate in candidates
        if not candidate.is_host and candidate.variant in variants
    ]
    for candidate in chosen:
        wrong, _ = judge(function, candidate.inside, "cutlass", candidate.variant)
        assert not wrong, (candidate.sub_graph.label, candidate.variant, wrong)
    return {candidate.sub_graph.label for candidate in chosen}


@pytest.mark.parametrize(
    ("dtype", "activation"),
    [("float32", "sigmoid"), ("float32", "gelu_erf"), ("float16", "swish"), ("bfloat16", "relu")],
)
def test_convolutions_with_bias_residual_and_activation(tmp_path, judge, dtype, activation):
    function = models.convolution(tmp_path, dtype, activation)
    labels = judge_all(judge, function)
    assert labels == {"conv", "conv+residual", f"conv+residual+{activation}"}
    assert logged("run cutlass convolution")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_convolutions_over_one_dimension(tmp_path, judge, dtype):
    function = models.sequence_convolution(tmp_path, dtype)
    assert judge_all(judge, function) == {"conv", "conv+sigmoid"}


@pytest.mark.parametrize("variant", ["", "64x64", "tf32"])
def test_what_is_folded_and_channels_that_are_filled_up(tmp_path, judge, variant):
    """3 channels to 10, pixels in more than one square; a factor of the channels, a dilation, two strides."""
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[2, 1, 0, 1], strides=[2, 1],
                         dilations=[1, 2]),
        helper.make_node("Mul", ["c", "f"], ["m"]),
        helper.make_node("Add", ["m", "s"], ["a"]),
        helper.make_node("Relu", ["a"], ["y"]),
    ]  # fmt: skip
    weights = {"w": (10, 3, 3, 2), "b": (10,), "f": (10, 1, 1), "s": (1, 10, 1, 1)}
    function = models.model(tmp_path, "float32", nodes, {"x": (2, 3, 13, 11)}, weights)
    labels = judge_all(judge, function, (variant,))
    assert max(labels, key=len) == "conv+channel factor+bias+relu"
    assert logged("run cutlass convolution" + (" in TF32" if variant == "tf32" else ""))


@pytest.mark.parametrize("dtype", TYPES)
def test_products(tmp_path, judge, dtype):
    assert "matmul+bias+relu" in judge_all(judge, layer(tmp_path, dtype))
    assert logged("run cutlass gemm")


def test_products_in_tf32(tmp_path, judge):
    assert "matmul+bias+relu" in judge_all(judge, layer(tmp_path, "float32"), ("tf32",))
    assert logged("run cutlass gemm in TF32")


@pytest.mark.parametrize("model", [convolutions, windows])
def test_a_plan_computes_the_models_numbers(tmp_path, model):
    """A grouped convolution is left to the host here."""
    plan = plan_of(model(tmp_path), CUTLASS)
    assert {kernel.backend for kernel in plan.kernels} == {"cutlass", "onnxruntime-host"}
    check(plan, tmp_path)
    assert not logged("spoiled")


def test_a_convolution_is_captured_with_its_copies(tmp_path):
    """Scratch memory is taken by the first call: nothing allocates while a graph is captured."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Conv", ["r", "v"], ["y"]),
    ]
    weights = [_weight("w", 4, 3, 2, 2), _weight("v", 5, 4, 1, 1)]
    function = _function(tmp_path, nodes, {"x": (1, 3, 6, 6)}, {"y": (1, 5, 5, 5)}, weights)
    check(plan_of(function, CUTLASS), tmp_path)
    for name in ("collage_to_channels_last", "cutlass convolution", "collage_to_channels_first"):
        assert len(logged(f"captured {name}")) == 2
    assert logged("launch graph")
    assert not logged("spoiled")
