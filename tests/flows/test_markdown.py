"""Names, verdicts and texts: no Prefect, no server."""

import pytest

pytest.importorskip("prefect")

from collage.errors import (
    DamagedError,
    GateError,
    ModelError,
    RegistryError,
    StoreError,
    UnprovenError,
)
from collage.pipeline.request import CompileResult, FunctionCompileResult
from collage.store.base import check_key
from flows.markdown import summary_markdown
from flows.names import artifact_key, slug, version_alias
from flows.results import (
    Outcome,
    failed,
    is_infrastructure,
    overall,
    pairs,
    parse_pairs,
    version_status,
)


@pytest.mark.parametrize(
    "name", ["resnet18", "PP-OCR v4/rec", "../../evil", "Modèle", ".hidden", "ü"]
)
def test_every_name_makes_a_key(name):
    check_key(f"aliases/{version_alias(name, '3', 'gpu-a')}.json")
    assert artifact_key("summary", name).isascii()


def test_names_that_look_alike_stay_apart():
    assert len({slug(name) for name in ("a b", "a/b", "a-b")}) == 3


def outcome(environment="a", status="optimized", **extra):
    return Outcome(
        environment=environment, status=status, reason="said", node="n" + environment, **extra
    )


@pytest.mark.parametrize(
    ("statuses", "folded"),
    [
        (["optimized", "optimized"], "optimized"),
        (["optimized", "not-faster"], "not-faster"),
        (["not-faster", "failed"], "failed"),
        ([], "failed"),
    ],
)
def test_a_version_is_as_good_as_its_worst_environment(statuses, folded):
    assert overall([outcome(status=status) for status in statuses]) == folded


def test_tags_of_one_and_of_several_environments():
    alone = version_status([outcome(bundle="b1")])
    assert (alone.bundle, alone.environment) == ("b1", "a=na")
    pair = version_status([outcome(bundle="b1"), outcome("b", bundle="b2")])
    assert (pair.bundle, pair.environment) == ("a=b1,b=b2", "a=na,b=nb")
    assert parse_pairs(pair.environment) == {"a": "na", "b": "nb"}
    assert parse_pairs("") == parse_pairs("x") == {}
    assert pairs({}) == ""


@pytest.mark.parametrize(
    ("error", "again", "rejected"),
    [
        (StoreError("503"), True, False),
        (RegistryError("502"), True, False),
        (ConnectionResetError(), True, False),
        (DamagedError("wrong bytes"), False, False),
        (ModelError("not ONNX"), False, True),
        (GateError("other numbers"), False, True),
        (UnprovenError("on a busy machine"), False, True),
        (ValueError("a bug"), False, False),
    ],
)
def test_who_is_at_fault(error, again, rejected):
    assert is_infrastructure(error) == again
    assert failed("a", error).rejected == rejected


FUNCTIONS = tuple(
    FunctionCompileResult(
        function=name, verdict="not slower", predicted_s=None,
        latency_s={"collage": 2e-3, "openvino": 3e-3, "onnx|runtime": None},
    )
    for name in ("main", "main_1")
)  # fmt: skip


def test_the_summary_shows_verdict_and_latencies():
    result = CompileResult(
        bundle="b", report="r", reason="", speedup=1.5, functions=FUNCTIONS[:1], plan=(), measured=3,
        cached=4, invalid=1, seconds={"verify": 2.0},
    )  # fmt: skip
    text = summary_markdown("m", "1", outcome(bundle="b1", alias="m/1/a", result=result))
    assert "## m 1 on a: optimized" in text
    assert "| openvino | 3.00 ms | 1.50x |" in text
    assert "| onnx\\|runtime | – | – |" in text
    assert "collage fetch STORE m/1/a" in text
    assert not any(line.startswith(" ") for line in text.splitlines())
    pair = result.model_copy(update={"functions": FUNCTIONS})
    text = summary_markdown("m", "1", outcome(bundle="b1", alias="m/1/a", result=pair))
    assert "### main: not slower" in text
    assert "### main_1: not slower" in text
    assert text.count("| openvino | 3.00 ms | 1.50x |") == 2
