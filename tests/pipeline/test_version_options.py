"""Options of one version: what may stand in them, and what they replace."""

import json

import pytest

from collage.errors import OptionError
from collage.options import EFFORTS
from collage.pipeline.request import RequestOptions
from collage.pipeline.version_options import (
    MAX_SECONDS,
    MAX_TEXT,
    VERSION_OPTIONS,
    VersionOptions,
    parse_version_options,
)

OPERATORS = {"workers", "timeout_s", "memory_bytes"}
"""Options of a request that a version cannot have; a new option must be put here or into the list."""


def test_every_option_of_a_request_is_allowed_or_the_operators():
    assert {*VERSION_OPTIONS} | OPERATORS == {*RequestOptions.model_fields}
    assert not OPERATORS & {*VERSION_OPTIONS}


@pytest.mark.parametrize("text", ["", " \n"])
def test_no_text_means_no_options(text):
    assert parse_version_options(text, "tag") == VersionOptions()
    options = RequestOptions(seed=3)
    assert parse_version_options(text, "tag").over(options) is options


@pytest.mark.parametrize(
    "text",
    [
        '{"dims": {"batch": 1}, "precision": "auto", "environments": ["a", "b"], "team": "ocr"}',
        "dims: {batch: 1}\nprecision: auto\nenvironments: [a, b, a]\nteam: ocr\n",
    ],
    ids=["JSON", "YAML"],
)
def test_options_stand_over_those_of_the_run(text):
    own = parse_version_options(text, "tag")
    assert (own.environments, own.team) == (("a", "b"), "ocr")
    merged = own.over(RequestOptions(seed=3, dims={"side": 8}, precision="fp32"))
    assert (merged.seed, merged.dims, merged.precision) == (3, {"batch": 1}, "auto")


def test_one_shape_set_may_stand_without_a_list():
    for shapes in ({"x": [1, 3]}, [{"x": [1, 3]}]):
        options = parse_version_options(json.dumps({"shapes": shapes}), "tag").over(None)
        assert options.shapes == ({"x": (1, 3)},)


def test_an_effort_is_its_budgets_unless_they_are_stated():
    own = parse_version_options('{"effort": "quick", "refine_s": 7, "environments": "a"}', "tag")
    options = own.over(RequestOptions(tune_s=30))
    quick = EFFORTS["quick"]
    assert (options.measure_budget_s, options.refine_s) == (quick.measure_budget_s, 7)
    assert options.tune_s == quick.tune_s
    assert own.environments == ("a",)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "neither JSON nor YAML"),
        ("[1]", "write a mapping"),
        ("quick", "write a mapping"),
        ("1: 2", "write a mapping"),
        ("[" * 15000, "neither JSON nor YAML|nested too deeply"),
        ("a: " + "x" * MAX_TEXT, "more than"),
        ("dims: &a {b: 1}\nshapes: *a", "anchors and aliases"),
        ('{"dims": {"batch": "many"}}', r"dims\.batch: "),
        ('{"dims": [1]}', "dims: "),
        ('{"tolerance": -1}', "tolerance must be above 0"),
        ('{"tolerance": NaN}', "tolerance must be above 0"),
        ('{"precision": "fp64"}', "precision must be"),
        ('{"pad": ["x"]}', "x"),
        ('{"effort": "heroic"}', "effort must be quick or normal or thorough"),
        ('{"effort": ["quick"]}', "effort must be"),
        ('{"environments": {"a": 1}}', "environments must be a list of names"),
        ('{"team": 3}', "team must be a name"),
        (f'{{"measure_budget_s": {MAX_SECONDS + 1}}}', "measure_budget_s must be at most"),
        ('{"verify_s": Infinity}', "verify_s must be at most"),
        ('{"end_to_end_plans": 1000000}', "end_to_end_plans must be at most"),
        ('{"backends": ["onednn", "os:system"]}', "'os:system' would load code"),
    ],
)
def test_wrong_options_are_refused_with_their_place(text, reason):
    with pytest.raises(OptionError, match=f"^the tag of small: .*({reason})"):
        parse_version_options(text, "the tag of small")


@pytest.mark.parametrize(
    "name",
    ["store", "cache_dir", "samples", "inputs", "sign_key", "device", "allow_slower", "typo", *OPERATORS],
)  # fmt: skip
def test_nothing_of_the_operators_may_be_set(name):
    with pytest.raises(
        OptionError, match=f"'{name}' cannot be set for a version; there are backends"
    ):
        parse_version_options(json.dumps({name: 1}), "tag")
