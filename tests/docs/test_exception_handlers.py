"""No handler discards a broad exception without a trace: it uses it, logs, raises, or a comment says why."""

import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from collage import errors

ROOT = Path(__file__).parents[2]
FOLDERS = ("collage", "containers", "flows")
OWN = {name for name, value in vars(errors).items() if isinstance(value, type)}
BROAD = {"BaseException", "Exception", "OSError", "RuntimeError", *OWN}
"""Exceptions with many causes; a narrow one, such as FileNotFoundError, says itself what happened."""
LOG_METHODS = {"critical", "debug", "error", "exception", "info", "warning"}


def discarded(source: str) -> list[int]:
    """Return the lines of handlers and of `suppress` that discard a broad exception."""
    comments = _comment_lines(source)
    return sorted(
        first
        for first, last, leaves_trace in _handlers(ast.parse(source))
        if not leaves_trace and comments.isdisjoint(range(first, last + 1))
    )


def _comment_lines(source: str) -> set[int]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {token.start[0] for token in tokens if token.type == tokenize.COMMENT}


def _handlers(tree: ast.AST) -> Iterator[tuple[int, int, bool]]:
    """Yield first line, last line, and whether a trace is left, of each handler of a broad exception."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and _is_broad(node.type):
            yield node.lineno, node.body[-1].end_lineno or 0, _leaves_trace(node)
        elif isinstance(node, ast.With):
            calls = [item.context_expr for item in node.items]
            suppressed = [
                caught
                for call in calls
                if isinstance(call, ast.Call) and _name(call.func) == "suppress"
                for caught in call.args
            ]
            if any(map(_is_broad, suppressed)):
                yield node.lineno, node.body[0].lineno, False


def _is_broad(caught: ast.expr | None) -> bool:
    if isinstance(caught, ast.Tuple):
        return any(map(_is_broad, caught.elts))
    return caught is None or _name(caught) in BROAD


def _leaves_trace(handler: ast.ExceptHandler) -> bool:
    return any(
        isinstance(node, ast.Raise)
        or (isinstance(node, ast.Name) and node.id == handler.name)
        or (isinstance(node, ast.Call) and _name(node.func) in LOG_METHODS)
        for statement in handler.body
        for node in ast.walk(statement)
    )


def _name(expression: ast.expr) -> str:
    if isinstance(expression, ast.Attribute):
        return expression.attr
    return expression.id if isinstance(expression, ast.Name) else ""


@pytest.mark.parametrize(
    ("handler", "found"),
    [
        ("except OSError:\n    pass", [3]),
        ("except Exception as error:\n    x = 1", [3]),
        ("except (ValueError, StoreError):\n    x = None", [3]),
        ("except:\n    x = None", [3]),
        ("except OSError:  # read-only\n    pass", []),
        ("except OSError as error:\n    log.debug('%s', error)", []),
        ("except OSError as error:\n    x = str(error)", []),
        ("except Exception:\n    raise", []),
        ("except FileNotFoundError:\n    pass", []),
        ("finally:\n    with suppress(OSError):\n        x()", [4]),
        ("finally:\n    with suppress(OSError):  # gone\n        x()", []),
        ("finally:\n    with suppress(KeyError):\n        x()", []),
    ],
)
def test_a_discarded_exception_is_noticed(handler, found):
    assert discarded(f"try:\n    x()\n{handler}\n") == found


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_broad_exception_is_discarded_silently(folder):
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    assert not [
        f"{file.relative_to(ROOT)}:{line}" for file in files for line in discarded(file.read_text())
    ]
