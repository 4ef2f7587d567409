"""CHANGELOG.md and the hooks of pre-commit keep their form."""

import re
import tomllib

import yaml

from tests.documents import ROOT

KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_the_changelog_begins_with_what_is_unreleased():
    titles = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert titles[0] == "Unreleased"
    releases = [re.fullmatch(r"(\d+\.\d+\.\d+) - \d{4}-\d\d-\d\d", title) for title in titles[1:]]
    assert all(releases)
    dates = [title.partition(" - ")[2] for title in titles[1:]]
    assert dates == sorted(dates, reverse=True)


def test_the_changelog_has_the_version_of_the_project():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"\n## {version} - " in (ROOT / "CHANGELOG.md").read_text()


def test_unreleased_changes_are_of_known_kinds():
    text = (ROOT / "CHANGELOG.md").read_text()
    unreleased = text.partition("## Unreleased\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^### (.+)$", unreleased, re.MULTILINE)) <= KINDS


def test_hooks_run_programs_of_the_checkout_alone():
    """No hook is fetched, and each program is one that `make lint` or `make types` runs."""
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    makefile = (ROOT / "Makefile").read_text()
    assert [repo["repo"] for repo in config["repos"]] == ["local"]
    for hook in config["repos"][0]["hooks"]:
        assert hook["language"] == "system"
        program = hook["entry"].split()[0]
        assert program.startswith(".venv/bin/")
        assert f"$(BIN)/{program.removeprefix('.venv/bin/')}" in makefile
        assert (ROOT / program).is_file()
