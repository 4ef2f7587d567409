"""The golden files themselves: no name of Python's, and none that no test compares."""

import re
from pathlib import Path

from tests.support.golden import FOLDER

ROOT = Path(__file__).parents[2]
CLASS = re.compile(r"^\s*class (\w+)", re.MULTILINE)
MODULE = re.compile(r"\b(?:collage|flows|containers)(?:\.[a-z_]+)+:\w+")


def golden_files():
    return [file for file in FOLDER.iterdir() if file.suffix in (".json", ".txt")]


def test_golden_files_name_no_class():
    """A rename of a class leaves every golden file as it is; one word alone may be a word of the data."""
    sources = [
        file for part in ("collage", "flows", "containers") for file in (ROOT / part).rglob("*.py")
    ]
    classes = {name for file in sources for name in CLASS.findall(file.read_text())}
    assert len(classes) > 100
    several = {name for name in classes if len(re.findall("[A-Z]", name)) > 1}
    for file in golden_files():
        text = file.read_text()
        assert not set(re.findall(r"\w+", text)) & several, file.name
        assert not MODULE.search(text), file.name


def test_every_golden_file_is_compared():
    """Names that a test makes (`kernel_{name}.json`) count with their fixed beginning."""
    tests = "".join(file.read_text() for file in FOLDER.glob("test_*.py"))
    whole = set(re.findall(r'check_golden\(\s*f?"([^"{]+)"', tests))
    begun = tuple(re.findall(r'check_golden\(\s*f"([^"{]+)\{', tests))
    assert begun
    for file in golden_files():
        assert file.name in whole or file.name.startswith(begun), file.name
