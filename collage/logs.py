"""Logs of long-running parts: one JSON object per line, with context, without secrets.

Modules log through `logging.getLogger(__name__)`; the entry point of a process calls `configure_logs` once.
`log_context` adds the subject of the work (`run`, `function`, `candidate`, `backend`) to every line inside
it, from any module. Contexts follow `contextvars`: asyncio tasks inherit them, a new thread starts
without.

Two mechanisms keep secrets out. Settings hold them as SecretStr, printed as asterisks. The
formatter, the last step of a line, removes the known secrets of the process (environment variables
with such names, and values of `hide_secret`) and text in the form of a secret: passwords in URLs,
Authorization headers, AWS key ids, signatures of presigned URLs. Messages, context and tracebacks
are covered alike.
"""

import json as json_module
import logging
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Protocol
from urllib.parse import quote, quote_plus

HIDDEN = "***"
SHORTEST_SECRET = 6
"""Shorter values would hide parts of ordinary words."""

Fact = str | int | float | bool | None


class Secret(Protocol):
    """What pydantic's SecretStr is."""

    def get_secret_value(self) -> str: ...


_context: ContextVar[dict[str, Fact]] = ContextVar("collage_log_context", default={})  # noqa: B039
_secrets: set[str] = set()

_SECRET_NAME = re.compile(
    r"(SECRET|TOKEN|PASSWORD|PASSWD|PASSPHRASE|API_?KEY|AUTH_STRING|ACCESS_KEY|PRIVATE_KEY|CREDENTIALS?)"
    r"(_ID|_VALUE)?$",
    re.IGNORECASE,
)
_PATTERNS = (
    (re.compile(r"\b([a-z][a-z0-9+.-]*://)[^\s/@'\"]+@", re.IGNORECASE), rf"\1{HIDDEN}@"),
    (
        re.compile(
            r"\b((?:proxy-)?authorization['\"]?\s*[:=]\s*['\"]?)(?:(?:basic|bearer|aws4-hmac-sha256)\s+)?"
            r"[^\s'\",;]+(?:,?\s*(?:SignedHeaders|Signature|Credential)=[^\s'\",;]+)*",
            re.IGNORECASE,
        ),
        rf"\1{HIDDEN}",
    ),
    (re.compile(r"\b(bearer\s+)[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE), rf"\1{HIDDEN}"),
    (
        re.compile(
            r"\b(X-Amz-(?:Signature|Security-Token|Credential)=|"
            r"[\w.-]{0,40}(?:password|passwd|secret|token|api_?key|access_key)=)[^\s&'\",;]+",
            re.IGNORECASE,
        ),
        rf"\1{HIDDEN}",
    ),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), HIDDEN),
)
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {
    "message", "asctime", "taskName", "color_message",
}  # fmt: skip


def configure_logs(component: str, *, json: bool | None = None) -> None:
    """Configure this process to log to standard error; a repeated call replaces the configuration.

    Args:
        component: name of the part, e.g. `serve`, in every line.
        json: whether lines are JSON objects, else text; None: JSON unless standard error is a terminal.
    """
    for name, value in os.environ.items():
        if _SECRET_NAME.search(name):
            hide_secret(value)
    as_json = not sys.stderr.isatty() if json is None else json
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(component) if as_json else TextFormatter(component))
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    logging.captureWarnings(True)
    sys.excepthook = _log_crash


@contextmanager
def log_context(**facts: Fact) -> Iterator[None]:
    """Add facts (`run`, `function`, `candidate`, `backend`, ...) to every line written inside.

    >>> with log_context(run="7f3a", function="main"):
    ...     logging.getLogger("collage").info("measured")
    """
    token = _context.set({**_context.get(), **facts})
    try:
        yield
    finally:
        _context.reset(token)


def hide_secret(value: str | Secret | None) -> None:
    """Never let `value` appear in a log of this process; very short values cannot be hidden."""
    text = value if value is None or isinstance(value, str) else value.get_secret_value()
    if text and len(text) >= SHORTEST_SECRET:
        _secrets.update({text, quote(text, safe=""), quote_plus(text)})


def redact(text: str) -> str:
    """Return `text` without secrets.

    >>> redact("GET http://admin:hunter2@minio:9000/models")
    'GET http://***@minio:9000/models'
    """
    for secret in sorted(_secrets, key=lambda secret: (-len(secret), secret)):
        text = text.replace(secret, HIDDEN)
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (UTC), level, component, logger, message, context, error."""

    def __init__(self, component: str) -> None:
        super().__init__()
        self._component = component

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; what cannot be written as JSON is written as its text."""
        fields = {
            "time": _utc(record.created),
            "level": record.levelname.lower(),
            "component": self._component,
            "logger": record.name,
            "message": _message(record),
            **_facts(record),
        }
        if error := _error(self, record):
            fields["error"] = error
        return json_module.dumps({name: _clean(value) for name, value in fields.items()})


class TextFormatter(logging.Formatter):
    """A line for a human at a terminal."""

    def __init__(self, component: str) -> None:
        super().__init__()
        self._component = component

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, with the traceback below it where there is one."""
        facts = " ".join(f"{name}={value}" for name, value in _facts(record).items())
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        line = f"{clock} {record.levelname.lower():<7} {self._component}: {_message(record)}"
        error = _error(self, record)
        return redact(line + (f"  [{facts}]" if facts else "") + (f"\n{error}" if error else ""))


def _facts(record: logging.LogRecord) -> dict[str, object]:
    """The context, and what the caller gave as `extra`."""
    extra = {name: value for name, value in vars(record).items() if name not in _STANDARD}
    return {**_context.get(), **extra}


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError) as error:
        return f"{record.msg} (a log call with unfit arguments: {error})"


def _error(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    if record.exc_info and record.exc_info[0]:
        return formatter.formatException(record.exc_info)
    return record.exc_text or ""


def _clean(value: object) -> Fact:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float) and value - value == 0:  # NaN and infinity are no JSON
        return value
    return redact(str(value))


def _utc(created: float) -> str:
    second = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(created))
    return f"{second}.{int(created % 1 * 1000):03d}Z"


def _log_crash(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    if issubclass(kind, KeyboardInterrupt):
        return
    logging.getLogger("collage").critical("ended by an error", exc_info=(kind, error, trace))
