"""Errors of a command: text on standard error, or with --json one document on standard output."""

import argparse
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

from collage.errors import INTERRUPTED, CollageError, OptionError
from collage.logs import redact


class UsageError(OptionError):
    """An invalid command line."""

    def __init__(self, message: str, usage: str, program: str) -> None:
        super().__init__(f"{message}; see `{program} --help`")
        self.usage = usage


class Parser(argparse.ArgumentParser):
    """An argparse parser with exceptions: errors raise UsageError instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        """Raise UsageError."""
        raise UsageError(message, self.format_usage(), self.prog)


def run_command(run: Callable[[], int], *, as_json: bool) -> int:
    """Run a command and return its exit code; print its error, if any.

    Args:
        run: the command; it returns an exit code.
        as_json: print errors as one JSON document on standard output.
    """
    try:
        return run()
    except UsageError as error:
        if not as_json:
            print(error.usage, end="", file=sys.stderr)
        return _fail(error.exit_code, error.reason, error.advice, as_json=as_json, text=str(error))
    except CollageError as error:
        return _fail(error.exit_code, error.reason, error.advice, as_json=as_json, text=str(error))
    except KeyboardInterrupt:
        return _fail(
            INTERRUPTED,
            "interrupted",
            "measured costs are kept: run the command again to continue",
            as_json=as_json,
        )
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except Exception as error:  # noqa: BLE001 - a fault of Collage, of any kind
        reason, advice = _fault(error)
        return _fail(1, reason, advice, as_json=as_json)


def wants_json(arguments: Sequence[str]) -> bool:
    """Tell whether --json is among the arguments, even of an invalid command line."""
    return "--json" in arguments


def _fail(code: int, reason: str, advice: str, *, as_json: bool, text: str = "") -> int:
    if as_json:
        print(json.dumps({"error": {"exit_code": code, "reason": reason, "advice": advice}}))
    else:
        print(f"collage: {text or f'{reason}; {advice}'}", file=sys.stderr)
    return code


def _fault(error: Exception) -> tuple[str, str]:
    """Write the traceback of an unexpected exception to a file; return the reason and the advice."""
    said = redact(" ".join(f"{type(error).__name__}: {error}".split()))[:300]
    trace = redact("".join(traceback.format_exception(error)))
    try:
        handle, file = tempfile.mkstemp(prefix="collage-trace-", suffix=".txt")
        with os.fdopen(handle, "w") as out:
            out.write(trace)
    except OSError:  # the disk is full or read-only
        print(trace, file=sys.stderr)
        file = "standard error"
    return (
        f"unexpected {said}",
        f"this is a fault of Collage; its traceback, for a bug report, is in {file}",
    )
