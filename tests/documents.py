"""Code that a document shows, taken out of it to be run."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILE = re.compile(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", re.DOTALL)


def shown_files(document: str) -> dict[str, str]:
    """Return the files that `document` shows after `<!-- file: NAME -->`, by name."""
    return dict(FILE.findall((ROOT / document).read_text()))
