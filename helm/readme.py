"""Write what follows from the chart's values.yaml, where every value has a comment that begins `# --`.

README.md has a table of the values. templates/_defaults.tpl has their defaults for `collage.restore`:
Helm deletes a default whose value is null, and a template cannot read values.yaml.

python helm/readme.py            # write both
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

CHART = Path(__file__).parent / "collage"
DEFAULTS = CHART / "templates" / "_defaults.tpl"
_LINE = re.compile(r"^(?P<indent> *)(?P<key>[A-Za-z]+):(?P<rest>.*)$")


@dataclass(frozen=True)
class Value:
    """One row of the table."""

    path: str
    default: str
    description: str


def main() -> None:
    """Write both files."""
    (CHART / "README.md").write_text(readme())
    DEFAULTS.write_text(defaults())


def readme() -> str:
    """Return what README.md says."""
    head = (CHART / "README.head.md").read_text()
    rows = [f"| `{value.path}` | `{value.default}` | {value.description} |" for value in values()]
    table = ["| value | default | |", "|---|---|---|", *rows]
    return f"{head}\n## Values\n\n" + "\n".join(table) + "\n"


def defaults() -> str:
    """Return the template with the default of each value, by its path."""
    content = yaml.safe_load((CHART / "values.yaml").read_text())
    rows = [
        f"  {json.dumps(value.path)}: {json.dumps(_at(content, value.path))}" for value in values()
    ]
    head = "{{- /* Written by helm/readme.py from values.yaml. */ -}}\n"
    rows_text = ",\n".join(rows)
    return f'{head}{{{{- define "collage.defaults" -}}}}\n{{\n{rows_text}\n}}\n{{{{- end -}}}}\n'


def values() -> Iterator[Value]:
    """List the documented values, in the order of the file."""
    text = (CHART / "values.yaml").read_text()
    content = yaml.safe_load(text)
    path: list[str] = []
    comment = ""
    for line in text.splitlines():
        bare = line.strip()
        if bare.startswith("# --"):
            comment = bare.removeprefix("# --").strip()
        elif bare.startswith("#") and comment:
            comment += " " + bare.removeprefix("#").strip()
        elif match := _LINE.match(line):
            path = [*path[: len(match["indent"]) // 2], match["key"]]
            if comment:
                yield Value(".".join(path), _default(content, path), comment.replace("|", "\\|"))
            comment = ""


def _at(content: object, path: str) -> object:
    for key in path.split("."):
        content = content[key]  # type: ignore[index]
    return content


def _default(content: object, path: list[str]) -> str:
    text = yaml.safe_dump(
        _at(content, ".".join(path)), default_flow_style=True, width=10_000, sort_keys=False
    )
    return text.removesuffix("\n...\n").strip().replace("|", "\\|")


if __name__ == "__main__":
    main()
