"""RESULTS.md as a sequence of sections: every benchmark writes its own section only.

A section `NAME` of the folder is `results/NAME.md`, with its facts, if any, as JSON lines in
`results/NAME.jsonl`. A benchmark with several settings has a section for each: `models-1` and `models-2` for
numbers of threads, `precision-0.01` for a tolerance.
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
"""Facts of the row of one `model` at one `revision`; older rows lack the fields of later commits."""
SECTIONS = (
    "models", "precision", "levers", "ablations", "roofline", "lazy", "family", "search",
    "refinement", "workers", "calls",
)  # fmt: skip
"""Order of the sections in RESULTS.md; sections of one name follow the order of their settings."""
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
    """Rewrite a section with one row a model after each measured model, with the commit.

    With models named in `arguments`, the rows of all further models stay unchanged.
    """
    by_model = _read_facts(arguments.output, name) if arguments.models else {}
    for facts in measured:
        by_model[facts["model"]] = facts | {"revision": _revision()}
        rows = list(by_model.values())
        text = document(rows, arguments)
        write_section(arguments.output, name, text, rows)
        print(_row(text, facts["model"]), flush=True)


def _row(text: str, model: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(f"| {model} |"))


def write_section(folder: Path, name: str, text: str, facts: Iterable[Facts] = ()) -> None:
    """Write one section and RESULTS.md from all sections; ValueError for an unknown section."""
    if name.partition("-")[0] not in SECTIONS:
        raise ValueError(f"{name!r} is no section of RESULTS.md: one of {', '.join(SECTIONS)}")
    sections = folder / "results"
    sections.mkdir(parents=True, exist_ok=True)
    (sections / f"{name}.md").write_text(text)
    if lines := "".join(json.dumps(row) + "\n" for row in facts):
        (sections / f"{name}.jsonl").write_text(lines)
    files = sorted(sections.glob("*.md"), key=_place)
    (folder / "RESULTS.md").write_text("\n".join([HEAD, *(file.read_text() for file in files)]))


def _place(file: Path) -> tuple[int, float]:
    name, _, setting = file.stem.partition("-")
    return SECTIONS.index(name), float(setting or 0)


def _read_facts(folder: Path, name: str) -> dict[str, Facts]:
    """Read the facts of an earlier section by model; an empty dictionary without a file."""
    file = folder / "results" / f"{name}.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return {facts["model"]: facts for facts in map(json.loads, lines)}


def machine() -> str:
    """Name the processor, its cores, the system and the relevant versions."""
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


def revisions(rows: Iterable[Facts]) -> str:
    """Write the commits of the rows; the most common one without its models."""
    models: dict[str, list[str]] = {}
    for facts in rows:
        models.setdefault(facts.get("revision", "an earlier commit"), []).append(facts["model"])
    most_common, *less_common = sorted(models, key=lambda revision: -len(models[revision]))
    named = (f"{revision} ({', '.join(models[revision])})" for revision in less_common)
    return ", at " + ", ".join([most_common, *named])
