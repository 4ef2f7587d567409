"""Progress on a terminal and in a log; the tables."""

import io
import json

import pytest
from rich.console import Console

from collage.backends.base import Availability
from collage.report.explain_text import overview_text
from collage.report.explanation import overview
from collage.report.html import render_html
from collage.report.summary import CandidateCounts, Optimality, Summary
from collage.report.summary_text import format_summary
from collage.report.terminal import TerminalProgress, print_backends
from collage.verify.verdict import Verdict
from tests.report.sample import function_summary, sample_report

KEYS = {
    "": ["models", "backends", "threads", "functions", "speedup_over_best", "plan",
         "candidates", "seconds", "gate", "bundle", "tuning", "notes", "precision",
         "other_shapes"],
    "candidates": ["enumerated", "unique", "measured", "cached", "invalid"],
    "seconds": ["import", "enumerate", "measure", "search", "tune", "assemble", "verify"],
    "gate": ["passed", "reason"],
    "tuning": ["trials", "failed", "kernels", "tuned", "saved_s"],
    "other_shapes": ["fallbacks", "padding", "footprint"],
}  # fmt: skip


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize("part", KEYS)
def test_the_keys_of_the_json_document(part):
    document = json.loads(sample_report().summary.to_json())
    assert list(document[part] if part else document) == KEYS[part]
    assert list(document["plan"][0]) == [
        "function", "nodes", "ops", "backend", "label", "cost_s", "precision", "error", "nan"
    ]  # fmt: skip
    (function,) = document["functions"]
    assert list(function) == [
        "function", "entry", "latency", "speedup_over_best", "predicted_s", "alone_s", "pace", "verdict",
        "reason", "ratios", "original", "deterministic", "optimality",
    ]  # fmt: skip
    assert list(function["latency"]) == ["collage_s", "baselines", "baseline_reasons"]
    assert function["latency"]["baselines"]["openvino"] is None
    assert function["ratios"]["onnxruntime"] == {"ratio": 0.79, "low": 0.78, "high": 0.8}


def test_the_json_document_is_one_line_and_reads_back():
    summary = sample_report().summary
    assert "\n" not in summary.to_json()
    assert Summary.model_validate_json(summary.to_json()) == summary


def run_stage(**options: bool) -> str:
    out, clock = io.StringIO(), Clock()
    console = Console(file=out, width=100, **options)
    with TerminalProgress(console=console, clock=clock).stage("measure", total=40) as stage:
        for index in range(40):
            clock.now_s += 0.5
            stage.advance(cached=int(index < 4), invalid=int(index == 5))
    return out.getvalue()


def test_plain_lines_come_every_two_seconds():
    lines = run_stage(force_terminal=False).splitlines()
    assert lines[0] == "measure    4/40  4 cached"
    assert lines[1] == "measure    8/40  4 cached  1 invalid  0:32 left"
    assert lines[-1] == "measure      20.0 s  40/40  4 cached  1 invalid"
    assert len(lines) == 11


def test_a_terminal_shows_a_bar():
    text = run_stage(force_terminal=True)
    assert "\x1b[" in text
    assert "40/40  4 cached  1 invalid" in text


def test_quiet_is_silent(capsys):
    with TerminalProgress(quiet=True).stage("import") as stage:
        stage.advance()
    assert capsys.readouterr() == ("", "")


def test_progress_goes_to_standard_error(capsys):
    with TerminalProgress().stage("import"):
        pass
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("import ")


def test_a_total_may_come_late():
    with TerminalProgress(quiet=True).stage("verify") as stage:
        assert stage.remaining_s is None
        stage.total = 3
        stage.advance()
        assert stage.counts() == "1/3"


def test_an_exception_leaves_the_stage():
    with pytest.raises(ValueError, match="x"), TerminalProgress(quiet=True).stage("import"):
        raise ValueError("x")


def test_the_summary_is_aligned():
    summary = sample_report(blocks=0).summary
    latency = summary.latency.model_copy(
        update={"collage_s": 0.0123, "baselines": {"openvino": None, "onnxruntime": 0.0161}}
    )
    (function,) = summary.functions
    optimality = Optimality(plan_s=0.012, bound_s=0.009, proven=False)
    function = function.model_copy(
        update={"latency": latency, "speedup_over_best": 1.31, "optimality": optimality}
    )
    counts = CandidateCounts(enumerated=9, unique=8, measured=7, cached=1, invalid=0)
    plan = (*sample_report(blocks=1).summary.plan,)
    plan = tuple(
        region.model_copy(update={"cost_s": cost_s})
        for region, cost_s in zip(plan, (0.008, 0.003, 0.001), strict=True)
    )
    update = {"functions": (function,), "candidates": counts, "plan": plan}
    assert format_summary(summary.model_copy(update=update)) == GOLDEN


GOLDEN = """\
latency       median
collage      12.3 ms  1.31x the best baseline
onnxruntime  16.1 ms
openvino           –  HardSigmoid is not supported

plan      regions  nodes  predicted  share
onednn          1      3    8.00 ms    67%
tvm             1      6    3.00 ms    25%
openvino        1      2    1.00 ms     8%

gate        passed: 1.27 times as fast as onnxruntime; outputs equal
candidates  9 found, 8 different, 7 measured, 1 cached, 0 invalid
search      not proven: the bounds of unmeasured candidates allow 9.00 ms, 25% below the best sum of costs
bundle      ch_PP-OCRv4_det.collage
note        Loop_4 (Loop) stays whole: its body reads strings"""


def test_a_proof_is_stated_wherever_results_are_read():
    """In the summary, by `collage explain`, and on the page."""
    report = sample_report()
    (function,) = report.summary.functions
    proven = Optimality(plan_s=1e-3, bound_s=1e-3, proven=True)
    functions = (function.model_copy(update={"optimality": proven}),)
    summary = report.summary.model_copy(update={"functions": functions})
    report = report.model_copy(update={"summary": summary})
    text = "proven: no plan of these candidates has a lower sum of costs"
    assert f"\nsearch      {text}\n" in format_summary(summary)
    assert f"main: {text}" in overview_text(overview(report))
    assert f"<p>Search: {text}</p>" in render_html(report)
    functions = (function.model_copy(update={"optimality": None}),)
    assert "search" not in format_summary(summary.model_copy(update={"functions": functions}))


def several_functions():
    summary = sample_report().summary
    (first,) = summary.functions
    second = function_summary("main_1", 4e-3).model_copy(update={"verdict": Verdict.UNPROVEN})
    return summary.model_copy(update={"functions": (first, second)})


def test_every_function_has_its_latencies_and_its_verdict():
    lines = format_summary(several_functions()).splitlines()
    assert [line for line in lines if line.startswith("latency of ")] == [
        "latency of main   median", "latency of main_1   median"
    ]  # fmt: skip
    assert "            main: not slower" in lines
    assert "            main_1: unproven" in lines
    page = render_html(sample_report().model_copy(update={"summary": several_functions()}))
    assert "The gate: unproven." in page
    assert page.count("0.790× (0.780 to 0.800)") == 2


@pytest.mark.parametrize(
    ("pace", "said"), [(1.0, ""), (1.02, ""), (1.18, "18% longer"), (0.9, "10% less time")]
)
def test_a_machine_that_changed_its_pace_is_mentioned(pace, said):
    summary = sample_report().summary
    functions = tuple(function.model_copy(update={"pace": pace}) for function in summary.functions)
    lines = format_summary(summary.model_copy(update={"functions": functions})).splitlines()
    speed_lines = [line for line in lines if line.startswith("speed ")]
    assert bool(speed_lines) == bool(said)
    assert not said or f" calls took {said} in the final comparison" in speed_lines[0]


def test_hostile_names_do_not_steer_the_terminal():
    text = format_summary(sample_report(hostile="\x1b[2J\r\x07").summary)
    assert all(char.isprintable() or char == "\n" for char in text)


def test_backends_are_listed_with_versions_or_reasons(capsys):
    rows = [
        ("tvm", "native", "cpu", Availability("", {"apache-tvm": "0.27.0"})),
        ("openvino", "graph", "cpu", Availability("the package openvino is not installed")),
    ]
    print_backends(rows)
    assert capsys.readouterr().out.splitlines()[1:] == [
        "tvm       native  cpu     available  apache-tvm 0.27.0",
        "openvino  graph   cpu     missing    the package openvino is not installed",
    ]
