"""Products in TF32 on the simulated GPU: run by `test_simulated.py` in a process with it."""

import os

import numpy as np
import pytest

from collage.backends.base import BuildContext
from collage.backends.nvidia.architecture import tf32_reason
from collage.backends.registry import known_backends
from collage.cost import Environment, LocalCostTable
from collage.errors import BackendError
from collage.frontend.inputs import random_inputs, reference_values, save_reference
from collage.graph.index_set import index_set
from collage.measure.conditions import MeasuringConditions
from collage.measure.local import LocalMeasurer
from collage.measure.measurement_request import MeasurementRequest
from collage.rules import find_candidates
from collage.runtime.target import Target
from tests.backends.nvidia import cudnn_models as models
from tests.backends.nvidia.gpu_log import LOG, _log, logged  # noqa: F401
from tests.backends.nvidia.layer import layer
from tests.backends.regions import convolutions

BACKENDS = {backend.name: backend for backend in known_backends(None, "cuda")}
ROUNDED = 2.0**-11
"""Half a step of TF32."""


def product_of(function):
    """The nodes of the first product with its bias and activation."""
    return index_set(range(3))


@pytest.mark.parametrize("variant", BACKENDS["cublas"].reduced)
def test_cublas_rounds_the_factors_and_nothing_else(tmp_path, judge, variant):
    function = layer(tmp_path, "float32")
    wrong, error = judge(function, product_of(function), "cublas", variant)
    assert not wrong
    assert ROUNDED / 100 < error < 2 * ROUNDED
    assert logged("run cublasLtMatmul in TF32")


def test_full_precision_never_rounds(tmp_path, judge):
    function = layer(tmp_path, "float32")
    assert judge(function, product_of(function), "cublas", "") == ("", 0.0)
    convolution = models.convolution(tmp_path, "float32", "swish")
    nodes = models.largest(convolution).inside
    assert judge(convolution, nodes, "cudnn", "") == ("", 0.0)
    assert not [line for line in logged("run") if "TF32" in line]


@pytest.mark.parametrize("activation", models.ACTIVATIONS)
def test_cudnns_engines_on_tensor_cores_are_the_reduced_variants(tmp_path, judge, activation):
    function = models.convolution(tmp_path, "float32", activation)
    wrong, error = judge(function, models.largest(function).inside, "cudnn", "tf32")
    assert not wrong
    assert ROUNDED / 100 < error < 8 * ROUNDED
    assert logged("run cudnnConvolution in TF32")


def test_an_engine_that_does_not_round_is_no_reduced_variant(tmp_path, judge):
    """Of the engines for a plain convolution one is on tensor cores; a group has none for an activation."""
    plain = models.convolution(tmp_path, "float32", "relu")
    reason, _ = judge(plain, models.largest(plain).inside, "cudnn", "tf32-heuristic-2")
    assert reason.endswith("cuDNN proposes 1 usable engines, so there is none of rank 1")
    grouped = models.convolution(tmp_path, "float32", "swish", 2)
    reason, _ = judge(grouped, models.largest(grouped).inside, "cudnn", "tf32")
    assert "none is usable; 1 do not use TF32" in reason


def test_3d_convolutions_with_an_activation_are_tf32_only(tmp_path, judge):
    function, backend = models.volume_convolution(tmp_path, "float32"), BACKENDS["cudnn"]
    all_nodes = function.graph.everything
    candidates = find_candidates(function, [backend], may_reduce=True)
    assert {candidate.variant for candidate in candidates if candidate.inside == all_nodes} == set(
        backend.reduced
    )
    wrong, error = judge(function, all_nodes, "cudnn", "tf32")
    assert not wrong
    assert ROUNDED / 100 < error < 8 * ROUNDED


def test_sessions_are_told_that_they_may(tmp_path, judge):
    function = models.convolution(tmp_path, "float32", "relu")
    all_nodes = function.graph.everything
    for variant in ("", "tf32", "tf32-channels-last"):
        LOG.write_text("")
        assert judge(function, all_nodes, "onnxruntime-cuda", variant)[0] == ""
        (options,) = logged("session cuda")
        assert f"use_tf32={int(bool(variant))}" in options
        assert ("prefer_nhwc=1" in options) == variant.endswith("channels-last")


def test_tf32_engines_are_built_in_a_process_of_their_own(tmp_path, judge):
    """TensorRT reads a variable; the process with other kernels never has it."""
    function = models.convolution(tmp_path, "float32", "relu")
    all_nodes = function.graph.everything
    for variant, log_line in (("", "build engine"), ("tf32", "build engine in TF32")):
        LOG.write_text("")
        assert judge(function, all_nodes, "tensorrt", variant)[0] == ""
        assert judge(function, all_nodes, "tensorrt", variant)[0] == ""
        assert logged("build engine") == [log_line]
        assert len(logged("load engine")) == 2
    assert "NVIDIA_TF32_OVERRIDE" not in os.environ
    assert tf32_reason() == ""


def test_engines_of_a_first_call_have_full_precision(tmp_path, judge, monkeypatch):
    """On a machine without a GPU nothing is built, and TF32 is not offered there."""
    monkeypatch.setattr("collage.backends.nvidia.tensorrt.driver_reason", lambda: "no driver")
    function = models.convolution(tmp_path, "float32", "relu")
    all_nodes = function.graph.everything
    assert judge(function, all_nodes, "tensorrt", "") == ("", 0.0)
    assert logged("build engine") == ["build engine"]
    assert "NVIDIA_TF32_OVERRIDE" not in os.environ
    with pytest.raises(BackendError, match="only where there is a GPU: no driver"):
        BACKENDS["tensorrt"].compile(function, all_nodes, BuildContext(1), "tf32")


def test_the_variable_keeps_all_from_it(tmp_path, judge, monkeypatch):
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    function, backend = layer(tmp_path, "float32"), BACKENDS["cublas"]
    assert "NVIDIA_TF32_OVERRIDE=0 keeps" in backend.reduced_reason()
    reason, _ = judge(function, product_of(function), "cublas", "tf32")
    assert "cublas has no TF32 here: NVIDIA_TF32_OVERRIDE=0 keeps" in reason


def test_a_worker_measures_cost_and_error(tmp_path):
    function = convolutions(tmp_path)
    reference = tmp_path / "reference"
    save_reference(reference_values(function, random_inputs(function, 0)), reference)
    names = ("cudnn", "onnxruntime-cuda", "tensorrt")
    measurer = LocalMeasurer(
        [function],
        [BACKENDS[name] for name in names],
        LocalCostTable(tmp_path),
        MeasuringConditions(Environment("cpu", "", 2, 1, "gpu", "test"), Target.CUDA),
        reference_dir=reference,
    )
    first = models.largest(function).inside
    choices = [(name, variant) for name in names for variant in ("tf32", "")]
    costs = measurer.measure(
        [MeasurementRequest(function.name, first, *choice) for choice in choices]
    )
    measurer.close()
    assert all(cost.is_valid for cost in costs), [cost.reason for cost in costs]
    assert costs[0].error > ROUNDED / 100  # cuDNN, in a process where the variable is not set
    assert costs[1].error == 0
    assert np.isfinite([cost.seconds for cost in costs]).all()
