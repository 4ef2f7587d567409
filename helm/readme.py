"""Write the chart's README.md from its values.yaml: every value has a comment that begins with `# --`.

python helm/readme.py            # write it
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

CHART = Path(__file__).parent / "collage"
_LINE = re.compile(r"^(?P<indent> *)(?P<key>[A-Za-z]+):(?P<rest>.*)$")


@dataclass(frozen=True)
class Value:
    """One row of the table."""

    path: str
    default: str
    description: str


def main() -> None:
    """Write README.md."""
    (CHART / "README.md").write_text(readme())


def readme() -> str:
    """Return what README.md says."""
    head = (CHART / "README.head.md").read_text()
    rows = [f"| `{value.path}` | `{value.default}` | {value.description} |" for value in values()]
    table = ["| value | default | |", "|---|---|---|", *rows]
    return f"{head}\n## Values\n\n" + "\n".join(table) + "\n"


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


def _default(content: object, path: list[str]) -> str:
    for key in path:
        content = content[key]  # type: ignore[index]
    text = yaml.safe_dump(content, default_flow_style=True, width=10_000, sort_keys=False)
    return text.removesuffix("\n...\n").strip().replace("|", "\\|")


if __name__ == "__main__":
    main()
