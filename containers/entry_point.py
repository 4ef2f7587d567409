"""Entry point of the programs in pods: run, report an error in one line, return the exit code."""

import os
import sys
import traceback
from collections.abc import Callable

from collage.cluster.pod.answers import end_on_sigterm, exit_code
from collage.errors import CollageError
from collage.logs import redact


def run(act: Callable[[], str]) -> int:
    """Run `act`, print its summary, and return the exit code.

    SIGTERM ends it in order. Errors are told on standard error, without secrets.
    """
    end_on_sigterm()
    place = f"{os.environ.get('COLLAGE_POD', 'pod')} on {os.environ.get('COLLAGE_NODE', 'a node')}"
    try:
        print(f"{place}: {act()}", flush=True)
    except CollageError as error:
        print(redact(f"{place}: {error}"), file=sys.stderr, flush=True)
        return exit_code(error)
    except Exception as error:  # noqa: BLE001 - the traceback is printed, without secrets
        print(redact(traceback.format_exc()), file=sys.stderr, flush=True)
        return exit_code(error)
    return 0
