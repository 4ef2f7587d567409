"""What a report says about regions in less than float32, on the terminal and on the page."""

import pytest

from collage.report.html import render_html
from collage.report.summary import PrecisionResult
from collage.report.summary_text import format_summary
from tests.report.sample import sample_report
from tests.report.test_html import HOSTILE, Page


def report(hostile=""):
    result = PrecisionResult(
        tolerance=0.01,
        trials=11,
        errors={"y" + hostile: 0.0042, "ids": 0.0, "odd": None},
        reduced_regions=3,
        rejected={"best-1" + hostile: "y: error 0.02, tolerance 0.01"},
        baselines={"openvino-bf16": 0.013},
        excused={"openvino-bf16": "y: error 0.013, tolerance 0.01" + hostile},
        notes=("onednn offers no bf16: this processor has neither" + hostile,),
    )
    report = sample_report()
    summary = report.summary.model_copy(update={"precision": result})
    (function,) = report.functions
    first = function.regions[0].model_copy(update={"precision": "bf16", "error": 0.0031})
    function = function.model_copy(update={"regions": (first, *function.regions[1:])})
    return report.model_copy(update={"summary": summary, "functions": (function,)})


@pytest.mark.parametrize("show", [lambda data: format_summary(data.summary), render_html])
def test_errors_tolerance_and_reasons_are_shown(show):
    text = show(report())
    for fact in ("0.0042", "0.01", "11", "excluded", "offers no bf16"):
        assert fact in text


def test_the_page_tells_the_precision_of_every_region():
    text = render_html(report())
    assert text.count("bf16, error 0.0031") >= 2  # in the table and in the region's details
    assert "cannot be compared" in text
    assert "bf16, error" not in render_html(sample_report())


def test_hostile_names_stay_text():
    page, calm = Page(render_html(report(HOSTILE))), Page(render_html(report()))
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in calm.tags]
    assert "\x1b" not in format_summary(report(HOSTILE).summary)


def test_without_permission_nothing_is_said():
    assert "fp32 precision" not in format_summary(sample_report().summary)
