"""Run a program under strace; return its network peers and the files it wrote.

strace sees every process of the program, with or without libc and with any environment. Only calls to open,
name or connect are traced, so a program runs nearly as fast as alone.
"""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.servers.binaries import Unavailable

CALLS = (
    "connect,sendto,sendmsg,sendmmsg,open,openat,openat2,creat,mkdir,mkdirat,mknod,mknodat,"
    "rename,renameat,renameat2,link,linkat,symlink,symlinkat"
)
_STOP_S = 60.0
_CALL = re.compile(r"^(\w+)\((.*)\)\s+= (-?\d+|\?)")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"(\.\.\.)?')
_INTERNET = re.compile(
    r"sa_family=AF_INET6?,.*?sin6?_port=htons\((\d+)\),.*?(?:inet_addr\(|AF_INET6, )\"([^\"]+)\""
)
_UNIX = re.compile(r'sa_family=AF_UNIX, sun_path=@?"([^"]*)"')
_NAME = re.compile(r"((?:\\(?:[0-7]{1,3}|[abtnvfr])[a-z0-9-]+){2,})\\0")
"""A name in a question to a name server, as strace writes it: `\\6mobile\\4data\\3com\\0`."""
_LABEL = re.compile(r"\\(?:[0-7]{1,3}|[abtnvfr])([a-z0-9-]+)")
_FOLDER = re.compile(r"<(/[^>]*)>")
_WRITES = ("O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC")
_MAKES = {"creat", "mkdir", "mkdirat", "mknod", "mknodat"}
_NAMES = {"rename", "renameat", "renameat2", "link", "linkat", "symlink", "symlinkat"}


@dataclass(frozen=True)
class Trace:
    """What a program did.

    Attributes:
        code: its exit code.
        output: standard output and standard error.
        sockets: peers, "address:port" or the path of a Unix socket.
        names: queries to name servers.
        written: files and folders that it made or opened to write.
    """

    code: int
    output: str
    sockets: frozenset[str]
    names: frozenset[str]
    written: frozenset[Path]


def require_strace() -> None:
    """Raise Unavailable where strace is missing or may trace nothing."""
    if shutil.which("strace") is None:
        raise Unavailable("no strace: apt-get install strace brings it")
    done = subprocess.run(["strace", "-qq", "-o", os.devnull, "true"], capture_output=True)
    if done.returncode:
        raise Unavailable(f"strace may trace nothing here: {done.stderr.decode().strip()[:200]}")


def traced(
    command: Sequence[str | Path],
    folder: Path,
    environment: Mapping[str, str],
    drive: Callable[[], None] | None = None,
) -> Trace:
    """Run `command` in a new folder with nothing but `environment`; wait for its end.

    Args:
        command: the program and its arguments.
        folder: empty working folder of the program, also for the trace.
        environment: all variables.
        drive: called while the program runs; the program gets SIGTERM when it returns.
    """
    log = folder / "output"
    full = [
        "strace", "-f", "-ff", "--seccomp-bpf", "-qq", "-y", "-s", "300", "-e", f"trace={CALLS}",
        "-e", "signal=none", "-o", folder / "calls", *command,
    ]  # fmt: skip
    with log.open("wb") as out:
        process = subprocess.Popen(full, cwd=folder, env=dict(environment), stdout=out, stderr=out)
        try:
            if drive is not None:
                drive()
                _terminate_traced(process)
            code = process.wait(300)
        finally:
            if process.poll() is None:
                _terminate_traced(process)
                process.kill()
                process.wait()
    sockets, names, written = set(), set(), set()
    for file in sorted(folder.glob("calls.*")):
        for call, arguments in _calls(file):
            sockets.update(_peers(call, arguments))
            names.update(_names(call, arguments))
            written.update(_written(call, arguments, folder))
    text = log.read_text(errors="replace")
    return Trace(code, text, frozenset(sockets), frozenset(names), frozenset(written))


def speaks(folder: Path) -> bool:
    """Tell whether a program that is traced in this folder has spoken to the internet by now."""
    return any(
        _INTERNET.search(file.read_text(errors="replace")) for file in folder.glob("calls.*")
    )


def _terminate_traced(strace: subprocess.Popen[bytes]) -> None:
    """End the program that strace runs; strace ends with it and with its exit code."""
    children = Path(f"/proc/{strace.pid}/task/{strace.pid}/children")
    for child in children.read_text().split() if children.exists() else []:
        os.kill(int(child), signal.SIGTERM)
    end = time.monotonic() + _STOP_S
    while strace.poll() is None and time.monotonic() < end:
        time.sleep(0.05)


def _calls(file: Path) -> Iterator[tuple[str, str]]:
    """Yield the calls that succeeded or, of those that speak, were tried: name and arguments."""
    for line in file.read_text(errors="replace").splitlines():
        if match := _CALL.match(line):
            call, arguments, result = match.groups()
            if call.startswith(("connect", "send")) or not result.startswith("-"):
                yield call, arguments


def _peers(call: str, arguments: str) -> Iterator[str]:
    if call.startswith(("connect", "send")):
        for port, address in _INTERNET.findall(arguments):
            yield f"{address}:{port}"
        yield from _UNIX.findall(arguments)


def _names(call: str, arguments: str) -> Iterator[str]:
    if call.startswith("send"):
        for name in _NAME.findall(arguments):
            yield ".".join(_LABEL.findall(name))


def _written(call: str, arguments: str, cwd: Path) -> Iterator[Path]:
    if call in _MAKES or (call.startswith("open") and any(flag in arguments for flag in _WRITES)):
        yield _path(arguments, cwd, last=False)
    elif call in _NAMES:
        yield _path(arguments, cwd, last=True)


def _path(arguments: str, cwd: Path, *, last: bool) -> Path:
    """Return the first or last path in the arguments, beside the folder that is named before it."""
    strings = list(_STRING.finditer(arguments))
    string = strings[-1 if last else 0]
    folders = _FOLDER.findall(arguments[: string.start()])
    return Path(os.path.normpath(Path(folders[-1] if folders else cwd) / string.group(1)))
