"""RESULTS.md is put together from sections: every benchmark writes its own, the others stay as they were.

A section `NAME` of the folder is `results/NAME.md`, with the facts behind it as JSON lines in
`results/NAME.jsonl` where it has any. What is measured in several settings has a section of each:
`models-1` and `models-2` for numbers of threads, `precision-0.01` for a tolerance.
"""

import json
from collections.abc import Iterable
from pathlib import Path

SECTIONS = (
    "models", "precision", "levers", "ablations", "roofline", "lazy", "family", "search", "workers",
)  # fmt: skip
"""In the order of RESULTS.md, those of one name in that of their settings."""
HEAD = """# Results

`make bench` writes all of this (about five hours on two cores, alone on the machine); the command
under each title writes its section only.
"""


def write_section(folder: Path, name: str, text: str, facts: Iterable[dict] = ()) -> None:  # type: ignore[type-arg]
    """Write one section and put RESULTS.md together again; ValueError for a name that it lacks."""
    if name.partition("-")[0] not in SECTIONS:
        raise ValueError(f"{name!r} is no section of RESULTS.md: one of {', '.join(SECTIONS)}")
    sections = folder / "results"
    sections.mkdir(parents=True, exist_ok=True)
    (sections / f"{name}.md").write_text(text)
    if lines := "".join(json.dumps(one) + "\n" for one in facts):
        (sections / f"{name}.jsonl").write_text(lines)
    files = sorted(sections.glob("*.md"), key=_place)
    (folder / "RESULTS.md").write_text("\n".join([HEAD, *(file.read_text() for file in files)]))


def _place(file: Path) -> tuple[int, float]:
    name, _, setting = file.stem.partition("-")
    return SECTIONS.index(name), float(setting or 0)


def read_facts(folder: Path, name: str) -> dict[str, dict]:  # type: ignore[type-arg]
    """Read the facts of an earlier section by model; none where there is no file."""
    file = folder / "results" / f"{name}.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return {facts["model"]: facts for facts in map(json.loads, lines)}
