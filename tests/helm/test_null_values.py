"""Null as a value: the default, or a message that says what is required; never a template's own failure."""

import functools
import json

import helm_python
import pytest

from tests.helm import charts

REQUIRED = ("image", "store", "prefect", "signing")
NULLS = charts.HOSTILE["nulls"]


def test_nulls_are_the_defaults():
    """A file of nulls and one without them make the same."""
    values = {key: {**NULLS[key]} for key in REQUIRED}
    for content in values.values():
        for key in [key for key, value in content.items() if not isinstance(value, str)]:
            del content[key]
    assert charts.render(NULLS) == charts.render(values)


def documented():
    """Paths of all values and of the mappings above them."""
    content = (charts.CHART / "templates" / "_defaults.tpl").read_text()
    paths = json.loads(content[content.index("\n{\n") : content.rindex("}\n{{") + 1])
    above = {path.rpartition(".")[0] for path in paths} - {""}
    return [*paths, *sorted(above | {path.partition(".")[0] for path in paths})]


@functools.cache
def answer(values):
    """Return the manifests of values in JSON, or the message of the refusal."""
    try:
        return charts.render(json.loads(values))
    except helm_python.HelmError as error:
        return str(error)


def changed(values, path, *value):
    """Return the values in JSON with one at a path, or with nothing there."""
    values = json.loads(json.dumps(values))
    *above, last = path.split(".")
    inner = values
    for key in above:
        inner = inner.setdefault(key, {}) if value else inner.get(key, {})
    inner.pop(last, None)
    if value:
        (inner[last],) = value
    return json.dumps(values)


@pytest.mark.full
def test_any_value_may_be_null():
    """Null is as good as nothing: the default, or the message that says what is required."""
    paths = documented()
    assert len(paths) > 100
    refused = set()
    for path in paths:
        expected = answer(changed(charts.ALL, path))
        actual = answer(changed(charts.ALL, path, None))
        assert actual == expected, path
        if isinstance(actual, str):
            assert "is required" in actual, actual
            refused.add(path)
    assert {path.partition(".")[0] for path in refused} == set(REQUIRED)


def test_a_null_inside_of_a_value_deletes_it():
    resources = {"requests": {"cpu": None}}
    pod = dict(charts.pods(charts.render({**charts.ENOUGH, "worker": {"resources": resources}})))
    assert "cpu" not in pod["collage-worker"]["containers"][0]["resources"]["requests"]


def test_every_template_begins_with_the_defaults():
    folder = charts.CHART / "templates"
    files = [file for file in folder.rglob("*") if file.suffix in (".yaml", ".txt")]
    assert len(files) > 10
    for file in files:
        assert file.read_text().startswith('{{- include "collage.restore" . -}}\n'), file.name
