"""Collage's entry points: each program does its work once and then stays idle for a while."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from collage.runtime.plugin import LIBRARY_FOLDER, library_path
from tests.containers.test_receiver import event, headers
from tests.ports import free_port, free_ports
from tests.quiet.trace import Trace, speaks, traced
from tests.servers.receiver import SECRET, PrefectRecorder

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "cpp"
ANYWHERE = (Path("/dev"), Path("/proc"))
"""Devices, and what a process says of itself."""
NAMES = frozenset({"/var/run/nscd/socket", "/run/nscd/socket"})
"""glibc asks there for the names of users and hosts, where a machine has such a service."""
_START_S = 120.0

KEEP = """
import importlib, sys, time
seconds, module = float(sys.argv[1]), sys.argv[2]
sys.argv = sys.argv[2:]
code = importlib.import_module(module).main()
time.sleep(seconds)
sys.exit(code)
"""
"""Runs a module's `main` and then stays alive: who reports does so in the background."""

LOAD = """
import sys, time
import collage
bundle = collage.load(sys.argv[2])
bundle.check()
time.sleep(float(sys.argv[1]))
"""
KEEP_CPP = """
#include <unistd.h>
#include <cstdlib>
int Example(int argc, char** argv);
#undef main
int main(int argc, char** argv) {
  int code = Example(argc, argv);
  usleep(static_cast<useconds_t>(std::atof(std::getenv("KEEP_S")) * 1e6));
  return code;
}
"""
REPORTED_WITHIN_S = 20.0
REPORTS = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
import onnxruntime
time.sleep(float(sys.argv[1]))
"""
"""ONNX Runtime as it is without Collage: what the watch has to find."""


@dataclass(frozen=True)
class Watched:
    """One entry point's program.

    Attributes:
        command: the program and its arguments.
        environment: its variables, beside PATH, HOME and the like.
        told: allowed addresses.
        home: allowed names in the user's folder.
        folders: folders that it was given, beside its temporary one.
        drive: call that sends one request to a program that serves.
    """

    command: Sequence[str | Path]
    environment: Mapping[str, str] = field(default_factory=dict)
    told: frozenset[str] = frozenset()
    home: tuple[str, ...] = ()
    folders: tuple[Path, ...] = ()
    drive: Callable[[], None] | None = None


@dataclass(frozen=True)
class Behaviour:
    """What nobody asked for: sockets, files, and what the program printed."""

    trace: Trace
    sockets: tuple[str, ...]
    files: tuple[str, ...]


def watch(watched: Watched, folder: Path) -> Behaviour:
    """Run the program with an empty home in the new folder `folder`."""
    home, temporary, calls = (folder / name for name in ("home", "tmp", "calls"))
    for directory in (home, temporary, calls):
        directory.mkdir(parents=True)
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(temporary), "LANG": "C.UTF-8",
        "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", **watched.environment,
    }  # fmt: skip
    trace = traced(watched.command, calls, environment, watched.drive)
    allowed = (*ANYWHERE, temporary, *watched.folders, *(home / name for name in watched.home))
    files = {file for file in trace.written if not _is_within(file, allowed)}
    files |= {file for file in home.rglob("*") if not _is_within(file, allowed)}
    return Behaviour(
        trace, tuple(sorted(trace.sockets - watched.told - NAMES)), tuple(sorted(map(str, files)))
    )


def _is_within(file: Path, allowed: Sequence[Path]) -> bool:
    """Tell whether the file is below one of these folders, or leads there."""
    return any(
        file == folder or folder in file.parents or file in folder.parents for folder in allowed
    )


def compile_(model: Path, bundle: Path, seconds: float) -> Watched:
    """Measure, assemble, and compare with both original frameworks."""
    arguments = [
        "compile", model, "-o", bundle, "--backends", "onnxruntime", "--threads", "1",
        "--budget", "5s", "--refine", "0s", "--tune", "0s", "--verify", "0.1s",
    ]  # fmt: skip
    return _kept(
        seconds, "collage.cli", arguments, home=(".cache/collage",), folders=(bundle.parent,)
    )


def bench(model: Path, bundle: Path, seconds: float) -> Watched:
    arguments = ["bench", bundle, "--model", model, "--seconds", "0.1s"]
    return _kept(seconds, "collage.cli", arguments)


def load(bundle: Path, seconds: float) -> Watched:
    return Watched([sys.executable, "-c", LOAD, str(seconds), bundle])


def onnxruntime_alone(folder: Path) -> Watched:
    """The control: a program that does report, until that has been seen; `folder` as `watch` has it."""

    def drive() -> None:
        end = time.monotonic() + REPORTED_WITHIN_S
        while time.monotonic() < end and not speaks(folder / "calls"):
            time.sleep(0.2)

    return Watched([sys.executable, "-c", REPORTS, str(_START_S)], drive=drive)


def serve(bundle: Path, seconds: float) -> Watched:
    port = free_port()
    url = f"http://127.0.0.1:{port}/v2/models/model"

    def drive() -> None:
        signature = json.loads(_wait_for(url))
        first = signature["inputs"][0]
        count = int(np.prod(first["shape"]))
        entry = {**first, "data": [0.5] * count}
        _post(f"{url}/infer", json.dumps({"inputs": [entry]}).encode())
        time.sleep(seconds)

    command = [sys.executable, "-m", "containers.serve", "--bundle", bundle]
    return Watched([*command, "--port", str(port), "--host", "127.0.0.1"], drive=drive)


def receiver(folder: Path, prefect: PrefectRecorder, seconds: float) -> Watched:
    """A webhook comes, and a run is started in Prefect."""
    (port, status_port), before = free_ports(2), len(prefect.runs)

    def drive() -> None:
        url = f"http://127.0.0.1:{port}"
        _wait_for(f"http://127.0.0.1:{status_port}/readyz")
        body = event("quiet")
        _post(f"{url}/webhooks/mlflow", body, headers(body))
        end = time.monotonic() + _START_S
        while len(prefect.runs) == before and time.monotonic() < end:
            time.sleep(0.05)
        assert len(prefect.runs) > before, "the receiver started no run"
        time.sleep(seconds)

    environment = {
        "COLLAGE_RECEIVER__SECRET": SECRET, "COLLAGE_RECEIVER__HOST": "127.0.0.1",
        "COLLAGE_RECEIVER__PORT": str(port), "COLLAGE_RECEIVER__STATUS_PORT": str(status_port),
        "COLLAGE_RECEIVER__JOURNAL": str(folder / "journal.db"),
        "PREFECT_API_URL": prefect.url,
    }  # fmt: skip
    told = frozenset({prefect.url.removeprefix("http://").removesuffix("/api")})
    command = [sys.executable, "-m", "containers.receiver"]
    return Watched(command, environment, told=told, folders=(folder,), drive=drive)


def measure(store: Path, batch: str, seconds: float) -> Watched:
    """A measuring pod's program on a shard."""
    arguments = ["shard", "--store", store, "--batch", batch, "--index", "0"]
    return _kept(seconds, "containers.measure", arguments, folders=(store,))


def flow(
    model: Path, folder: Path, server: str, options: Mapping[str, object], seconds: float
) -> Watched:
    """A flow's run on this machine, without a registry."""
    environment = {
        "PREFECT_API_URL": f"{server}/api", "COLLAGE_STORE": str(folder / "store"),
        "COLLAGE_CACHE_DIR": str(folder / "cache"), "COLLAGE_THREADS": "1",
        "TEST_OPTIONS": json.dumps(options),
    }  # fmt: skip
    told = frozenset({server.removeprefix("http://")})
    watched = _kept(seconds, "tests.flows.runner", [model], home=(".prefect",), folders=(folder,))
    return Watched(watched.command, environment, told, watched.home, watched.folders)


def cpp(program: Path, bundle: Path, seconds: float) -> Watched:
    """The C++ example, which has no Python to set variables."""
    inputs = program.with_name("inputs.bin")
    np.load(bundle / "golden.npz")["main/input/x"].tofile(inputs)
    libraries = {
        f"COLLAGE_LIB_{name.upper()}": str(library_path(name))
        for name in ("onnxruntime", "openvino")
    }
    command = [program, LIBRARY_FOLDER, bundle, inputs]
    return Watched(command, {**libraries, "KEEP_S": str(seconds)})


def built_example(folder: Path) -> Path:
    """Compile the C++ example so that it stays alive after its work."""
    import tvm_ffi

    packages, program = Path(tvm_ffi.__file__).parent, folder / "serve_bundle"
    library, keep = packages / "lib", folder / "keep.cc"
    keep.write_text(KEEP_CPP)
    subprocess.run(
        ["g++", "-std=c++17", "-Dmain=Example", *sorted(EXAMPLE.glob("*.cc")), keep, "-o", program,
         "-isystem", packages / "include", library / "libtvm_ffi.so", f"-Wl,-rpath,{library}", "-ldl"],
        check=True,
    )  # fmt: skip
    return program


def _kept(
    seconds: float,
    module: str,
    arguments: Sequence[object],
    *,
    home: tuple[str, ...] = (),
    folders: tuple[Path, ...] = (),
) -> Watched:
    command = [sys.executable, "-c", KEEP, str(seconds), module, *map(str, arguments)]
    return Watched(command, home=home, folders=folders)


def _wait_for(url: str) -> bytes:
    end = time.monotonic() + _START_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return bytes(answer.read())
        except OSError:
            assert time.monotonic() < end, f"{url} does not answer"
            time.sleep(0.1)


def _post(url: str, body: bytes, headers: Mapping[str, str] | None = None) -> None:
    request = urllib.request.Request(
        url, body, {"Content-Type": "application/json", **(headers or {})}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()
