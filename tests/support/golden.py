"""Texts that a test compares with a file beside it, so that nothing stored changes unnoticed.

A golden file holds what others read: keys, field names, digests. It holds no name of a Python class or
module, so that a rename inside leaves it alone. `COLLAGE_GOLDEN=write` writes the files anew.
"""

import difflib
import json
import os
from pathlib import Path

VARIABLE = "COLLAGE_GOLDEN"
FOLDER = Path(__file__).parents[1] / "golden"
MEANING = (
    "stored data would no longer be found or read. If that is meant, raise the schema version of the "
    "format, write an entry in CHANGELOG.md that says what is measured again, and run the test with "
    f"{VARIABLE}=write"
)


def check_golden(name: str, value: object) -> None:
    """Compare a value with a golden file.

    Args:
        name: file name in tests/golden, with its extension.
        value: a text, or a value of JSON, whose order of keys counts.

    Raises:
        AssertionError: the file is missing, or says something else.
    """
    found = value if isinstance(value, str) else json.dumps(value, indent=1, ensure_ascii=False)
    found = found.rstrip("\n") + "\n"
    file = FOLDER / name
    if os.environ.get(VARIABLE) == "write":
        file.write_text(found)
        return
    assert file.is_file(), f"{file} is missing; write it with {VARIABLE}=write"
    golden = file.read_text()
    difference = difflib.unified_diff(
        golden.splitlines(), found.splitlines(), f"golden/{name}", "now", lineterm="", n=1
    )
    assert found == golden, "\n".join((f"golden/{name} changed: {MEANING}", *difference))
