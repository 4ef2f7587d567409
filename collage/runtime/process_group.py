"""End of child processes together with their descendants, such as compilers.

A child with its own session (`start_new_session`) leads a process group, shared by its descendants. The
group is killed before the child is reaped: until then the group's number cannot be reused.
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
    """Kill the child's group and return the child's exit code; a second call has no effect.

    Args:
        process: child process, the leader of its group.
        patience_s: time for a voluntary exit, in seconds; default 0.
    """
    if process.returncode is None:
        deadline = time.monotonic() + patience_s
        while not _has_ended(process.pid, os.WNOHANG) and time.monotonic() < deadline:
            time.sleep(_LOOK_EVERY_S)
        _kill_group(process.pid)
        process.kill()
    return process.wait()


def end_code(process: Process) -> int:
    """Wait for the child's exit, kill the rest of its group, and return the exit code."""
    if process.returncode is None:
        _has_ended(process.pid, 0)
        _kill_group(process.pid)
    return process.wait()


def run_compiler(
    command: Sequence[str], *, timeout_s: float, environment: Mapping[str, str], text: str = ""
) -> "subprocess.CompletedProcess[str]":
    """Run a compiler and wait for it; after the time limit its descendants are killed too.

    The compiler stays in the process group of this process, so it ends with a killed worker.

    Args:
        command: program and arguments.
        timeout_s: time limit, in seconds.
        environment: environment variables of the program.
        text: standard input; default empty.

    Raises:
        subprocess.TimeoutExpired: the compiler took longer.
        OSError: the compiler does not start.
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
    """Return the descendants of a process, nearest first."""
    children = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # the process has ended
            children += [int(child) for child in file.read_text().split()]
    return children + [descendant for child in children for descendant in _descendants(child)]


def _has_ended(pid: int, options: int) -> bool:
    with suppress(ChildProcessError):
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | options) is not None
    return True


def _kill_group(leader: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
