"""Elements of a report's page. Names come from untrusted models: all text goes through `escaped`."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from collage.report.drawing import Mark


def escaped(text: object) -> str:
    """Escape for HTML; characters that no XML or HTML may hold become the replacement character."""
    clean = "".join(
        char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}"
        for char in str(text)
    )
    return escape(clean)


def badge(backend: str, marks: Mapping[str, Mark]) -> str:
    """Name a backend, with its colour and letter."""
    colour, letter = marks[backend]
    return f'<span class="badge k{colour}" aria-hidden="true">{escaped(letter)}</span>{escaped(backend)}'


def table(
    header: Sequence[str], rows: Iterable[str], numbers: Sequence[int] = (), wide: bool = False
) -> str:
    """Return a table whose columns `numbers` are right-aligned."""
    cells = "".join(
        f'<th scope="col"{" class=n" if place in numbers else ""}>{escaped(name)}</th>'
        for place, name in enumerate(header)
    )
    kind = "scroll wide" if wide else "scroll"
    return (
        f'<div class="{kind}" tabindex="0"><table><thead><tr>{cells}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>\n"
    )


def meter(seconds: float | None, longest_s: float, own: bool, reason: str = "") -> str:
    """Return a cell with a bar relative to `longest_s`; without seconds, a cell with the reason."""
    if seconds is None:
        return f'<td class="soft long">{escaped(reason)}</td>'
    kind = "meter own" if own else "meter"
    return (
        f'<td class="meters"><span class="{kind}" style="width:{100 * seconds / longest_s:.1f}%">'
        "</span></td>"
    )
