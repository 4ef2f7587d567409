"""Find the command lines in documents: in fenced blocks, and in inline code."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.documents import ROOT

PROGRAMS = frozenset(
    {"buildah", "cmake", "collage", "curl", "docker", "helm", "kubectl", "make", "openssl", "pip",
     "podman", "prefect", "python"}
)  # fmt: skip
SHELL = frozenset({"", "bash", "sh", "shell", "console"})
"""Languages of fenced blocks that hold command lines."""

_FENCE = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`")
_VARIABLE = re.compile(r"[A-Za-z_]\w*=\S*")


@dataclass(frozen=True)
class CommandLine:
    """A command line, with single spaces and without comment; `document` is relative to the checkout."""

    text: str
    document: str


def documents() -> list[Path]:
    """List the documents that show command lines to users."""
    patterns = ("*.md", "docs/**/*.md", "helm/collage/README*.md", "examples/**/README*")
    return sorted(file for pattern in patterns for file in ROOT.glob(pattern))


def all_command_lines() -> list[CommandLine]:
    """Return the command lines of all documents, each text once."""
    commands: dict[str, CommandLine] = {}
    for file in documents():
        for text in command_lines(file.read_text()):
            commands.setdefault(text, CommandLine(text, str(file.relative_to(ROOT))))
    return list(commands.values())


def command_lines(document: str) -> Iterator[str]:
    """Yield the command lines of a document.

    >>> list(command_lines("Run `make test`:\\n```\\nA=1 collage  run b  # checks\\nls\\n```\\n"))
    ['collage run b', 'make test']
    """
    for language, block in _FENCE.findall(document):
        if language in SHELL:
            for line in block.replace("\\\n", " ").splitlines():
                yield from _commands(line)
    for span in _INLINE.findall(_FENCE.sub("", document)):
        for text in _commands(span.replace("\n", " ")):
            if len(text.split()) > 2 or text.startswith("make "):
                yield text  # shorter ones name a program, or a command of one


def named_commands() -> set[str]:
    """Return the commands of `collage` that the documents name in inline code."""
    options = set()
    for file in documents():
        for span in _INLINE.findall(_FENCE.sub("", file.read_text())):
            words = span.split()
            if words[:1] == ["collage"] and len(words) > 1 and not words[1].startswith("-"):
                options.add(words[1])
    return options


def _commands(line: str) -> Iterator[str]:
    line = re.sub(r"(^|\s)#\s.*$", "", line)
    for part in re.split(r"&&|\|\|?|;(?=\s)", line):
        words = part.replace("&", " ").split()
        while words and _VARIABLE.fullmatch(words[0]):
            words = words[1:]
        if words and words[0].removeprefix(".venv/bin/") in PROGRAMS:
            yield " ".join(words)
