"""Sections of RESULTS.md: a row a model; with named models, the rows of all further models stay."""

from argparse import Namespace

import pytest

from benchmarks.results import revisions, write_rows, write_section


@pytest.fixture
def rows(tmp_path):
    """Measure models; returns RESULTS.md."""

    def write(models, seconds, named):
        arguments = Namespace(output=tmp_path, models=named)
        measured = ({"model": model, "seconds": seconds} for model in models)
        write_rows(arguments, "models-1", measured, _document)
        return (tmp_path / "RESULTS.md").read_text()

    return write


def _document(rows, arguments):
    return "".join(f"| {facts['model']} | {facts['seconds']} |\n" for facts in rows)


def test_with_named_models_the_other_rows_stay(rows, capsys):
    rows(["bert", "gpt2"], 1, "")
    text = rows(["gpt2", "llama"], 2, "gpt2,llama")
    assert text.endswith("| bert | 1 |\n| gpt2 | 2 |\n| llama | 2 |\n")
    assert capsys.readouterr().out.splitlines()[2:] == ["| gpt2 | 2 |", "| llama | 2 |"]


def test_a_run_of_all_models_starts_anew(rows):
    rows(["bert", "gpt2"], 1, "")
    text = rows(["gpt2"], 2, "")
    assert "| bert |" not in text
    assert text.endswith("| gpt2 | 2 |\n")


def test_rows_before_a_failure_are_written(rows, tmp_path):
    def fails():
        yield "bert"
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space"):
        rows(fails(), 1, "")
    assert "| bert | 1 |" in (tmp_path / "RESULTS.md").read_text()


def test_sections_follow_the_order_of_their_settings(tmp_path):
    for name in ("search", "precision-0.15", "models-2", "precision-0.01", "models-1"):
        write_section(tmp_path, name, f"## {name}\n")
    titles = [
        line[3:]
        for line in (tmp_path / "RESULTS.md").read_text().splitlines()
        if line.startswith("## ")
    ]
    assert titles == ["models-1", "models-2", "precision-0.01", "precision-0.15", "search"]
    with pytest.raises(ValueError, match="'modles' is no section"):
        write_section(tmp_path, "modles", "")


def test_only_rows_of_another_commit_are_named():
    rows = [
        {"model": "bert", "revision": "abc"}, {"model": "gpt2", "revision": "abc"},
        {"model": "llama", "revision": "def"}, {"model": "resnet18"},
    ]  # fmt: skip
    assert revisions(rows) == ", at abc, def (llama), an earlier commit (resnet18)"
