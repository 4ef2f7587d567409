"""Explaining a node and comparing plans: ranks, refusals, gaps, and the text and JSON of the commands."""

import json

import pytest

from collage.cli import main
from collage.errors import BundleError, InputError, OptionError
from collage.report.data import ReportData
from collage.report.explain_text import diff_text, node_text, overview_text
from collage.report.explanation import diff, explain_node, overview
from collage.report.stored_report import read_report
from tests.report.sample import sample_report


@pytest.fixture
def bundle(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "report.json").write_text(sample_report(blocks=2).to_json())
    return tmp_path / "a"


def changed(data: ReportData, backend: str) -> ReportData:
    """The same report with its second region on another backend."""
    function = data.functions[0]
    regions = list(function.regions)
    regions[1] = regions[1].model_copy(update={"backend": backend})
    changed_function = function.model_copy(update={"regions": tuple(regions)})
    return data.model_copy(update={"functions": (changed_function,)})


def test_a_node_is_found_by_number_and_by_name():
    data = sample_report(blocks=2)
    assert explain_node(data, "4").node.index == 4
    assert explain_node(data, "block.1/Relu").node.index == 16
    assert explain_node(data, "16").region.nodes == (14, 15, 16, 17, 18, 19)


@pytest.mark.parametrize(
    ("name", "message"),
    [("nothing", "numbers go from 0"), ("99", "numbers go"), ("block.1/rel", "block.1/Relu"),
     ("block.0/Conv", "give a number")],
)  # fmt: skip
def test_an_unknown_node_is_refused_with_a_hint(name, message):
    with pytest.raises(OptionError, match=message):
        explain_node(sample_report(blocks=2), name)


def test_alternatives_are_ranked_and_refusals_keep_their_reasons():
    explanation = explain_node(sample_report(blocks=2), "0")
    regrets = [candidate.regret_s for candidate in explanation.ranked]
    assert explanation.ranked[0].chosen
    assert regrets == sorted(regrets)
    assert all(
        0 in candidate.nodes
        for candidate in (*explanation.ranked, *explanation.refused, *explanation.unmeasured)
    )
    assert "wrong numbers" in explanation.refused[0].reason
    assert "lower bound" in explanation.unmeasured[0].reason
    assert [count.count for count in explanation.rest] == [7]


def test_a_backend_without_any_candidate_is_named():
    data = sample_report(blocks=2)
    summary = data.summary.model_copy(update={"backends": (*data.summary.backends, "cublas")})
    explanation = explain_node(data.model_copy(update={"summary": summary}), "0")
    assert explanation.absent == ("cublas",)
    assert "cublas: no candidate with this node" in node_text(explanation)


def test_the_same_plan_differs_nowhere():
    difference = diff(sample_report(blocks=2), sample_report(blocks=2))
    assert (difference.same, difference.changes) == (6, ())


def test_a_changed_region_is_one_change():
    data = sample_report(blocks=2)
    difference = diff(data, changed(data, "onednn"))
    assert difference.same == 5
    [change] = difference.changes
    assert change.nodes == data.functions[0].regions[1].nodes
    assert [region.backend for region in (*change.first, *change.second)] == ["tvm", "onednn"]
    assert "onednn" in diff_text(difference)


def test_overlapping_regions_become_one_change():
    data = sample_report(blocks=2)
    function = data.functions[0]
    first, second, *remaining = function.regions
    merged = first.model_copy(
        update={"nodes": (*first.nodes, *second.nodes), "backend": "openvino"}
    )
    merged_function = function.model_copy(update={"regions": (merged, *remaining)})
    [change] = diff(data, data.model_copy(update={"functions": (merged_function,)})).changes
    assert (len(change.first), len(change.second)) == (2, 1)
    assert change.nodes == merged.nodes


def test_plans_of_different_models_are_not_compared():
    with pytest.raises(OptionError, match="one model"):
        diff(sample_report(blocks=2), sample_report(blocks=3))


def test_totals_are_the_sums_of_the_regions():
    data = sample_report(blocks=2)
    [totals] = overview(data).totals
    assert totals.kernels_s == pytest.approx(sum(r.measured_s for r in data.functions[0].regions))
    assert (totals.regions, totals.nodes) == (6, 22)


def test_hostile_names_steer_no_terminal():
    data = sample_report(blocks=1, hostile="\x1b[31m")
    texts = (overview_text(overview(data)), node_text(explain_node(data, "0")),
             diff_text(diff(data, changed(data, "onednn"))))  # fmt: skip
    assert not any("\x1b" in text for text in texts)


@pytest.mark.parametrize(
    "arguments", [["explain", "A"], ["explain", "A", "--node", "3"], ["diff", "A", "A"]]
)
def test_json_is_exactly_one_document(bundle, arguments, capsys):
    command = [str(bundle) if word == "A" else word for word in arguments]
    assert main([*command, "--json"]) == 0
    assert isinstance(json.loads(capsys.readouterr().out), dict)
    assert main(command) == 0
    assert "tvm" in capsys.readouterr().out or arguments[0] == "diff"


def test_a_plan_that_became_slower_ends_with_exit_code_8(bundle, tmp_path, capsys):
    first = sample_report(blocks=2)
    plans = tuple(
        plan.model_copy(update={"measured_s": plan.measured_s * 1.2}) if plan.chosen else plan
        for plan in first.functions[0].plans
    )
    slower = first.functions[0].model_copy(update={"plans": plans})
    second = first.model_copy(update={"functions": (slower,)})
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "report.json").write_text(second.to_json())
    both = [str(bundle), str(tmp_path / "b")]
    assert main(["diff", *both, "--fail-slower", "25%"]) == 0
    assert main(["diff", *reversed(both), "--fail-slower", "0"]) == 0
    capsys.readouterr()
    assert main(["diff", *both, "--fail-slower", "5%"]) == 8
    assert "20.0% longer" in capsys.readouterr().err
    assert main(["diff", *both, "--fail-slower", "some"]) == 2


@pytest.mark.parametrize(("required", "code"), [("1.2", 0), ("1.3", 0), ("1.4", 8)])
def test_a_speedup_below_the_required_ends_with_exit_code_8(
    bundle, monkeypatch, capsys, required, code
):
    summary = sample_report(blocks=2).summary.model_copy(update={"speedup_over_best": 1.3})
    monkeypatch.setattr("collage.pipeline.compile_model", lambda *_: summary)
    assert main(["compile", "m.onnx", "-o", str(bundle), "--require-speedup", required]) == code
    assert ("is 1.300 times as fast" in capsys.readouterr().err) is (code == 8)


def test_what_is_no_report_is_refused(bundle, tmp_path):
    with pytest.raises(InputError):
        read_report(tmp_path)
    text = (bundle / "report.json").read_text()
    (bundle / "report.json").write_text(text[: len(text) // 2])
    with pytest.raises(BundleError, match="damaged"):
        read_report(bundle)
    (bundle / "report.json").write_text(
        text.replace('"schema_version":3', '"schema_version":99', 1)
    )
    with pytest.raises(BundleError, match="schema 99"):
        read_report(bundle)


def _edited(bundle, change):
    """Change the first function of the bundle's report."""
    document = json.loads((bundle / "report.json").read_text())
    change(document["functions"][0])
    (bundle / "report.json").write_text(json.dumps(document))


DAMAGES = {
    "regions": lambda document: document["regions"][0].update(nodes=[]),
    "nodes": lambda document: document["nodes"][0].update(inputs=[10**6]),
}


@pytest.mark.parametrize("field", DAMAGES)
def test_numbers_of_no_node_are_refused(bundle, field):
    _edited(bundle, DAMAGES[field])
    with pytest.raises(BundleError, match=f"the {field} of function"):
        read_report(bundle)


def test_two_nodes_of_one_number_are_refused(bundle):
    _edited(bundle, lambda document: document["nodes"][1].update(index=0))
    with pytest.raises(BundleError, match="the nodes of function"):
        read_report(bundle)


DOCUMENTS = [b"", b"[]", b"\xff", b"[" * 100_000, b'{"schema_version": ' + b"9" * 5000 + b"}"]


@pytest.mark.parametrize("command", ["explain", "diff", "report"])
@pytest.mark.parametrize("data", DOCUMENTS)
def test_a_garbled_document_ends_with_exit_code_5(bundle, capsys, command, data):
    (bundle / "report.html").write_text("")
    for name in ("report.json", "summary.json"):
        (bundle / name).write_bytes(data)
    second_bundle = [str(bundle)] if command == "diff" else []
    assert main([command, str(bundle), *second_bundle, "--json"]) == 5
    assert "is damaged, or of another version (" in "".join(capsys.readouterr())


def test_a_report_without_its_summary_is_refused(bundle, capsys):
    (bundle / "report.html").write_text("")
    assert main(["report", str(bundle), "--json"]) == 2
    assert "holds no summary.json" in "".join(capsys.readouterr())


def test_a_node_that_no_region_has_is_explained_as_such(bundle):
    _edited(bundle, lambda document: document.update(regions=document["regions"][1:]))
    with pytest.raises(OptionError, match="no region of the plan has this node"):
        explain_node(read_report(bundle), "0")


def test_digits_that_are_no_number_name_no_node():
    with pytest.raises(OptionError, match="no such node"):
        explain_node(sample_report(blocks=2), "\N{SUPERSCRIPT TWO}")
