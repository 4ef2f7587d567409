"""Start of child processes, and their end together with their descendants, such as compilers.

A child with its own session (`start_new_session`) leads a process group, shared by its descendants. The
group is killed before the child is reaped: until then the group's number cannot be reused.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

Process = subprocess.Popen[bytes] | subprocess.Popen[str]
_LOOK_EVERY_S = 0.01
_TAIL_BYTES = 4096
_LINE_LENGTH = 300


def start_group(
    module: str,
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    stdin: int = subprocess.DEVNULL,
    stdout: int | IO[bytes],
    stderr: int | IO[bytes],
    pass_fds: Sequence[int] = (),
) -> "subprocess.Popen[bytes]":
    """Start a Python module as the leader of a new process group.

    Args:
        module: dotted name of the child's main module.
        arguments: arguments of the module.
        environment: environment variables of the child (`collage.runtime.child_environment`).
        stdin: standard input; default empty.
        stdout: standard output.
        stderr: standard error.
        pass_fds: descriptors of this process that stay open in the child.
    """
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=environment,
        pass_fds=pass_fds,
        start_new_session=True,
    )


def output_tail(output: IO[bytes]) -> list[str]:
    """Return the last lines of a child's output, stripped and without empty ones."""
    output.seek(max(0, output.seek(0, os.SEEK_END) - _TAIL_BYTES))
    lines = output.read().decode(errors="replace").split("\n")
    return [line.strip() for line in lines if line.strip()]


def last_line(output: IO[bytes]) -> str:
    """Return the last line of a child's output, shortened; "" without output."""
    return (output_tail(output) or [""])[-1][:_LINE_LENGTH]


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
