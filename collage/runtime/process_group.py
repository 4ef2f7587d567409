"""Child processes that end with all that they started: compilers, and what compilers start.

A child that is the leader of its own session (`start_new_session`) has a process group of its own, which
its descendants share. The group is ended before the child is reaped: until then its number cannot be
another's.
"""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

Process = subprocess.Popen[bytes] | subprocess.Popen[str]
_LOOK_EVERY_S = 0.01


def end_group(process: Process, patience_s: float = 0.0) -> int:
    """Kill the child's group and return the child's exit code; again does nothing.

    Args:
        process: the leader of its group.
        patience_s: how long the child may take to end by itself.
    """
    if process.returncode is None:
        deadline = time.monotonic() + patience_s
        while not _has_ended(process.pid, os.WNOHANG) and time.monotonic() < deadline:
            time.sleep(_LOOK_EVERY_S)
        _kill_group(process.pid)
        process.kill()
    return process.wait()


def end_code(process: Process) -> int:
    """Wait until the child has ended by itself, end what it left running, return its exit code."""
    if process.returncode is None:
        _has_ended(process.pid, 0)
        _kill_group(process.pid)
    return process.wait()


def run_compiler(
    command: Sequence[str], *, timeout_s: float, environment: Mapping[str, str], text: str = ""
) -> "subprocess.CompletedProcess[str]":
    """Run a compiler and wait for it: when its time is up, what it started ends too.

    It stays in the group of this process, which may be a worker that is killed meanwhile.

    Args:
        command: program and arguments.
        timeout_s: seconds it may take.
        environment: of the program.
        text: what it reads from its standard input.

    Raises:
        subprocess.TimeoutExpired: it took longer.
        OSError: it does not start.
    """
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        try:
            output, errors = process.communicate(text, timeout_s)
        except BaseException:
            for pid in _descendants(process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def _descendants(pid: int) -> list[int]:
    """Return the children of a process, and theirs, the nearest first."""
    children = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            children += [int(child) for child in file.read_text().split()]
    return children + [descendant for child in children for descendant in _descendants(child)]


def _has_ended(pid: int, options: int) -> bool:
    with suppress(ChildProcessError):
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | options) is not None
    return True


def _kill_group(leader: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
