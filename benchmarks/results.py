"""RESULTS.md is put together from sections: every benchmark writes its own, the others stay as they were.

A section `NAME` of the folder is `results/NAME.md`, with the facts behind it as JSON lines in
`results/NAME.jsonl` where it has any. What is measured in several settings has a section of each:
`models-1` and `models-2` for numbers of threads, `precision-0.01` for a tolerance.
"""

import json
import os
import platform
import subprocess
from argparse import Namespace
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

Facts = dict[str, Any]
"""Of the row of one `model`, at one `revision`; what an older commit did not write is missing."""
SECTIONS = (
    "models", "precision", "levers", "ablations", "roofline", "lazy", "family", "search", "workers",
    "calls",
)  # fmt: skip
"""In the order of RESULTS.md, those of one name in that of their settings."""
HEAD = """# Results

`make bench` writes all of this (about five hours on two cores, alone on the machine); the command
under each title writes its section only.
"""


def write_rows(
    arguments: Namespace,
    name: str,
    measured: Iterable[Facts],
    document: Callable[[list[Facts], Namespace], str],
) -> None:
    """Write a section of a row a model anew after each that is measured, with the commit.

    Where `arguments` name their models, the rows of the others stay as they were.
    """
    found = _read_facts(arguments.output, name) if arguments.models else {}
    for facts in measured:
        found[facts["model"]] = facts | {"revision": _revision()}
        rows = list(found.values())
        text = document(rows, arguments)
        write_section(arguments.output, name, text, rows)
        print(_row(text, facts["model"]), flush=True)


def _row(text: str, model: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(f"| {model} |"))


def write_section(folder: Path, name: str, text: str, facts: Iterable[Facts] = ()) -> None:
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


def _read_facts(folder: Path, name: str) -> dict[str, Facts]:
    """Read the facts of an earlier section by model; none where there is no file."""
    file = folder / "results" / f"{name}.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return {facts["model"]: facts for facts in map(json.loads, lines)}


def machine() -> str:
    """Name the processor, its cores, the system and the versions that matter."""
    names = ("apache-tvm", "onnxruntime", "openvino", "onednn-cpu-gomp")
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    cpu = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    return f"{cpu}, {os.cpu_count()} cores, {platform.system()}, {versions}"


def _revision() -> str:
    """Return the short name of the commit, "" outside a repository."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def revisions(found: Iterable[Facts]) -> str:
    """Write which commit the rows are of; the most common one without its models."""
    models: dict[str, list[str]] = {}
    for one in found:
        models.setdefault(one.get("revision", "an earlier commit"), []).append(one["model"])
    first, *others = sorted(models, key=lambda at: -len(models[at]))
    return ", at " + ", ".join([first, *(f"{at} ({', '.join(models[at])})" for at in others)])
