"""The tuning stage inside a compile: spent once, resumed after a kill, off when told so."""

import os
import signal
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import collage
from collage.cli.command_line import make_parser
from collage.cost.lines import decode_entries
from collage.errors import OptionError
from collage.options import EFFORTS
from collage.report.summary import TuningFacts
from collage.report.summary_text import tuning_text
from tests.support.waiting import wait_until

pytestmark = pytest.mark.full


def model_of_one_product(path):
    """A vector times a matrix: bound by reading weights that are in no near cache."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((1024, 256)) * 0.1, "b": rng.standard_normal(256)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["s"]),
        helper.make_node("Relu", ["s"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1024])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 256])],
        [numpy_helper.from_array(v.astype(np.float32), n) for n, v in weights.items()],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), path)
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return model_of_one_product(tmp_path_factory.mktemp("model") / "one.onnx")


def compiled(model, store, output, tune_s, shared=None):
    options = collage.Options(
        backends=("onnxruntime", "tvm"),
        threads=1,
        cache_dir=store,
        store=shared,
        verify_s=0.2,
        fallback=False,
        allow_slower=True,
        refine_s=0.0,
        measure_budget_s=10,
        tune_s=tune_s,
    )
    return collage.compile(model, options, output=output)


def records_in(store):
    files = (store / "tuning").glob("*.jsonl")
    entries = [entry for file in files for entry in decode_entries(file.read_bytes())]
    return [entry for entry in entries if entry and "workload" in entry]


@pytest.mark.slow
def test_a_budget_is_spent_once_and_its_records_serve_later_runs(model, tmp_path):
    store = tmp_path / "store"
    untuned = compiled(model, store, tmp_path / "a", 0.0)
    assert untuned.tuning == TuningFacts()
    assert not (store / "tuning").exists()
    first = compiled(model, store, tmp_path / "b", 12.0)
    assert first.tuning.trials == len(records_in(store)) > 0
    assert first.tuning.kernels == 1
    assert first.seconds.tune < 12.0 + 10.0
    second = compiled(model, store, tmp_path / "c", 12.0)
    assert (second.tuning.trials, second.candidates.measured) == (0, 0)
    assert second.tuning.tuned == first.tuning.tuned
    bundle = collage.load(tmp_path / "c")
    bundle.check()


@pytest.mark.slow
def test_a_budget_without_tuning_tasks_is_spent_too(model, tmp_path, monkeypatch):
    # A run sees higher peaks than the one before, or lower ones: its tuning_tasks would be others.
    store = tmp_path / "store"
    with monkeypatch.context() as patched:
        patched.setattr("collage.pipeline.tuning.find_tuning_tasks", lambda *_, **__: [])
        first = compiled(model, store, tmp_path / "a", 5.0)
    second = compiled(model, store, tmp_path / "b", 5.0)
    assert (first.tuning.trials, second.tuning.trials) == (0, 0)
    assert second.candidates.measured == 0
    third = compiled(model, store, tmp_path / "c", 6.0)
    assert third.tuning.trials > 0


@pytest.mark.slow
def test_a_killed_compile_keeps_every_finished_trial_and_goes_on(model, tmp_path):
    store = tmp_path / "store"
    command = [
        sys.executable, "-m", "collage", "compile", str(model), "--backends", "onnxruntime,tvm",
        "--threads", "1", "--cache-dir", str(store), "--budget", "5s", "--refine", "0s",
        "--tune", "120s", "--quiet", "-o", str(tmp_path / "bundle"),
    ]  # fmt: skip
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    wait_until(lambda: len(records_in(store)) >= 3, 90, every_s=0.01)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    before = {str(entry["trace"]) for entry in records_in(store)}
    assert len(before) >= 3
    assert not (tmp_path / "bundle").exists()
    resumed = compiled(model, store, tmp_path / "resumed", 6.0)
    after = {str(entry["trace"]) for entry in records_in(store)}
    assert before <= after
    assert resumed.tuning.trials == len(records_in(store)) - len(before)
    assert resumed.candidates.cached > 0


@pytest.mark.parametrize("effort", sorted(EFFORTS))
def test_every_effort_says_how_long_to_tune(effort):
    parsed = make_parser().parse_args(["compile", "m.onnx", "--effort", effort, "--tune", "60s"])
    assert parsed.tune_s == 60.0
    assert (EFFORTS[effort].tune_s == 0) is (effort == "quick")


def test_a_negative_time_is_refused():
    with pytest.raises(OptionError, match="tune_s"):
        collage.Options(tune_s=-1.0)


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        (TuningFacts(), ""),
        (
            TuningFacts(trials=9, kernels=2),
            "9 trials on 2 kernels, none fast enough to be a candidate",
        ),
        (
            TuningFacts(trials=9, kernels=2, tuned=1),
            "9 trials on 2 kernels, 1 tuned candidates change no plan (predicted)",
        ),
        (
            TuningFacts(tuned=1, saved_s=2e-6),
            "0 trials on 0 kernels, 1 tuned candidates save 2.00 µs (predicted)",
        ),
    ],
)
def test_the_summary_says_what_tuning_gave(facts, text):
    assert tuning_text(facts) == text
