"""RESULTS.md is put together from sections: every benchmark writes its own, the others stay as they were.

A section `NAME` of the folder is `results/NAME.md`, with the facts behind it as JSON lines in
`results/NAME.jsonl` where it has any.
"""

import json
from collections.abc import Iterable
from pathlib import Path

SECTIONS = (
    "models-1", "models-2", "precision", "levers", "ablations", "lazy", "family", "search", "workers",
)  # fmt: skip
"""In the order of RESULTS.md."""
HEAD = """# Results

`make bench` writes all of this (about three hours on two cores, alone on the machine); the command
under each title writes its section only.
"""


def write_section(folder: Path, name: str, text: str, facts: Iterable[dict] = ()) -> None:  # type: ignore[type-arg]
    """Write one section and put RESULTS.md together again; ValueError for a name that it lacks."""
    if name not in SECTIONS:
        raise ValueError(f"{name!r} is no section of RESULTS.md: one of {', '.join(SECTIONS)}")
    sections = folder / "results"
    sections.mkdir(parents=True, exist_ok=True)
    (sections / f"{name}.md").write_text(text)
    if lines := "".join(json.dumps(one) + "\n" for one in facts):
        (sections / f"{name}.jsonl").write_text(lines)
    files = [sections / f"{section}.md" for section in SECTIONS]
    parts = [HEAD, *(file.read_text() for file in files if file.is_file())]
    (folder / "RESULTS.md").write_text("\n".join(parts))


def read_facts(folder: Path, name: str) -> dict[str, dict]:  # type: ignore[type-arg]
    """Read the facts of an earlier section by model; none where there is no file."""
    file = folder / "results" / f"{name}.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return {facts["model"]: facts for facts in map(json.loads, lines)}
