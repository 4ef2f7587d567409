"""The page: well-formed, self-contained, escaped, deterministic, and quick for large functions."""

import json
import re
import time
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from collage.report.data import ReportData
from collage.report.formatting import duration
from collage.report.html import render_html
from tests.report.sample import sample_report

VOID = {"meta", "br", "link", "img", "input", "hr"}
HOSTILE = """</script><script>alert(1)</script><img src=x onerror=alert(1)>"'&\x1b[31m\x00"""


class Page(HTMLParser):
    """Checks that tags nest; collects tags, attributes and the data element."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open:
            self.texts[self.open[-1]] = self.texts.get(self.open[-1], "") + data


def data_element(text: str) -> list:
    return json.loads(re.search(r'id="data">(.*?)</script>', text, re.S).group(1))


def test_the_page_is_well_formed_and_complete():
    text = render_html(sample_report())
    page = Page(text)
    for fact in ("Latency", "Graph", "Timeline", "Regions", "Roofline", "Alternatives",
                 "Invalid candidates", "Never measured", "The kernels sum to", "lower bound",
                 "Measured end to end", "Environment"):  # fmt: skip
        assert fact in text
    assert len([tag for tag, _ in page.tags if tag == "script"]) == 2


def test_nothing_is_loaded_from_outside():
    text = render_html(sample_report())
    assert set(re.findall(r"https?://[^\s\"']+", text)) <= {"http://www.w3.org/2000/svg"}
    attributes = {name for _, attribute_names in Page(text).tags for name in attribute_names}
    assert attributes.isdisjoint({"src", "href", "srcset", "action"})
    assert "@import" not in text
    assert "url(" not in text


def test_hostile_names_stay_text():
    text = render_html(sample_report(hostile=HOSTILE))
    page = Page(text)
    calm = Page(render_html(sample_report()))
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in calm.tags]
    assert not any(
        name.startswith("on") for _, attribute_names in page.tags for name in attribute_names
    )
    assert "\x1b" not in text
    assert "\x00" not in text


def test_the_same_data_gives_the_same_bytes():
    assert render_html(sample_report()) == render_html(sample_report())


def test_every_node_and_region_is_drawn_without_overlap():
    report = sample_report()
    [drawing] = data_element(render_html(report))
    assert len(drawing["nodes"]["boxes"]) == len(report.functions[0].nodes)
    assert len(drawing["regions"]["boxes"]) == len(report.functions[0].regions)
    for view in (drawing["nodes"], drawing["regions"]):
        width = view["box"][0]
        rows: dict[float, list[float]] = {}
        for box in view["boxes"]:
            rows.setdefault(box["y"], []).append(box["x"])
        for row in rows.values():
            assert all(b - a >= width for a, b in pairwise(sorted(row)))


def test_alternatives_tell_cost_regret_and_reason():
    [drawing] = data_element(render_html(sample_report()))
    alternatives = drawing["details"][0]["alternatives"]
    assert alternatives[0]["chosen"]
    assert alternatives[0]["regret"] == "chosen"
    assert {alternative["cost"] for alternative in alternatives} >= {"invalid", "unmeasured"}
    assert any("wrong numbers" in alternative["reason"] for alternative in alternatives)


def test_what_kernels_took_alone_stands_beside_what_is_predicted():
    data = sample_report()
    region = data.functions[0].regions[0]
    cells = f'<td class="n">{duration(region.alone_s)}</td><td class="n">{duration(region.predicted_s)}</td>'
    assert cells in render_html(data)
    assert "Isolated: measured alone" in render_html(data)
    regions = tuple(
        region.model_copy(update={"alone_s": None}) for region in data.functions[0].regions
    )
    function = data.functions[0].model_copy(update={"regions": regions})
    old = render_html(data.model_copy(update={"functions": (function,)}))
    assert cells not in old
    assert "Alone" not in old


def test_invalid_candidates_are_grouped_by_reason():
    text = render_html(sample_report(blocks=3))
    assert text.count("the worker ended with SIGSEGV") == 1


def test_backends_have_letters_of_their_own():
    report = sample_report().model_dump()
    report["summary"]["backends"] = ("tvm", "onnxruntime", "openblas", "tensorrt", "torch")
    text = render_html(ReportData.model_validate(report))
    assert text
    from collage.report.drawing import backend_marks

    marks = backend_marks(report["summary"]["backends"])
    assert len({letter for _, letter in marks.values()}) == len(marks)
    assert len({colour for colour, _ in marks.values()}) == len(marks)


@pytest.mark.parametrize("blocks", [0, 1])
def test_small_reports_render(blocks):
    Page(render_html(sample_report(blocks=blocks)))


def test_a_thousand_nodes_take_seconds_and_megabytes_at_most():
    start = time.monotonic()
    text = render_html(sample_report(blocks=91))
    assert time.monotonic() - start < 5
    assert len(text) < 3_000_000
