"""Backends that cannot share a process are in no plan together, up to the executable that ships."""

import json
from types import SimpleNamespace

import pytest

import collage
from collage.backends.base import conflicts_of
from collage.errors import SearchError
from collage.pipeline.compile_context import CompileContext
from tests.backends.apart import Activations, FastRelu, FastReluApart, SigmoidApart
from tests.quiet.models import tiny_model

pytestmark = pytest.mark.full


def compiled(folder, *backends):
    options = collage.Options(
        backends=backends, threads=1, workers=1, cache_dir=folder / "store", measure_budget_s=20,
        refine_s=0, tune_s=0, verify_s=0.1, allow_slower=True,
    )  # fmt: skip
    model = tiny_model(folder / "tiny.onnx")
    collage.compile(model, options, output=folder / "bundle")
    return (folder / "bundle" / "plan.json"), (folder / "bundle" / "report.json")


def used(plan):
    return {region["backend"] for region in json.loads(plan.read_text())}


def fastest_s(report):
    """Return the latency of the fastest plan that was assembled, shipped or not."""
    (function,) = json.loads(report.read_text())["functions"]
    return min(plan["measured_s"] for plan in function["plans"] if plan["predicted_s"] is not None)


def test_executables_hold_backends_that_can_share_a_process(tmp_path):
    """The mix is by far the best plan: without the conflict it is assembled, with it no plan comes near."""
    for name in ("apart", "together"):
        (tmp_path / name).mkdir()
    plan, apart = compiled(tmp_path / "apart", FastReluApart(), Activations())
    assert used(plan) == {"activations"}
    _, together = compiled(tmp_path / "together", FastRelu(), Activations())
    assert fastest_s(apart) > 2 * fastest_s(together)


def test_where_only_a_mix_covers_the_model_the_conflict_is_named(tmp_path):
    with pytest.raises(SearchError, match="their backends cannot share a process"):
        compiled(tmp_path, FastReluApart(), SigmoidApart())


def test_functions_of_one_bundle_share_a_process():
    """What one function has chosen decides what the next ones may choose."""
    fields = dict.fromkeys(("options", "environment", "table", "progress", "work_dir"))
    context = CompileContext(backends=[FastReluApart(), Activations()], **fields)
    assert len(context.compatible_backends) == 2
    context.chosen.add("activations")
    assert [backend.name for backend in context.compatible_backends] == ["activations"]


def test_a_conflict_is_mutual_and_between_present_backends():
    first, second, third = (
        SimpleNamespace(name=name, conflicts=frozenset(conflicts))
        for name, conflicts in (("a", {"b", "absent"}), ("b", ()), ("c", ()))
    )
    assert conflicts_of([first, second, third]) == {"a": {"b"}, "b": {"a"}}
    assert conflicts_of([first, third]) == {}
