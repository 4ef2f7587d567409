"""Child processes that end with all that they started: compilers, and what compilers start.

A child that is the leader of its own session (`start_new_session`) has a process group of its own, which
its descendants share. The group is ended before the child is reaped: until then its number cannot be
another's.
"""

import os
import signal
import subprocess
from contextlib import suppress

GROUP = {"start_new_session": True}
"""Arguments for `subprocess.Popen`."""


def end_group(process: "subprocess.Popen[bytes] | subprocess.Popen[str]") -> int:
    """Kill the child's group, wait for the child, and return its exit code; again does nothing."""
    if process.returncode is None:
        _kill_group(process.pid)
        process.kill()
    return process.wait()


def end_code(process: "subprocess.Popen[bytes] | subprocess.Popen[str]") -> int:
    """Wait until the child has ended by itself, end what it left running, return its exit code."""
    if process.returncode is None:
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        _kill_group(process.pid)
    return process.wait()


def _kill_group(leader: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
