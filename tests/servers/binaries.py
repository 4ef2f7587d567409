"""Real servers for tests, built once from their Go modules and kept under the user's cache.

`KUBEBUILDER_ASSETS`, a folder with such binaries, comes first where it is set; Debian's etcd will do too.
Usage: `find("kube-apiserver")` returns a path, or raises Unavailable with one line that says why not.
`python -m tests.servers.binaries` builds them all (four minutes on two cores the first time).
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

KUBERNETES = "1.34.4"
BUILD_TIMEOUT_S = 1800.0


class Unavailable(Exception):
    """Why there is no such server on this machine."""


class NotAsked(Unavailable):
    """A server that only runs on request; CI omits it too."""


@dataclass(frozen=True)
class Recipe:
    """Sources of a binary."""

    module: str
    version: str
    package: str
    flags: str = "-s -w"


_STAMP = (
    f"-s -w -X k8s.io/component-base/version.gitVersion=v{KUBERNETES} "
    "-X k8s.io/component-base/version.gitMajor=1 "
    f"-X k8s.io/component-base/version.gitMinor={KUBERNETES.split('.')[1]}"
)
CONTROL_PLANE = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
KUBELET = "kubelet"
RECIPES = {
    **{
        name: Recipe("k8s.io/kubernetes", f"v{KUBERNETES}", f"k8s.io/kubernetes/cmd/{name}", _STAMP)
        for name in (*CONTROL_PLANE, KUBELET)
    },
    "etcd": Recipe("go.etcd.io/etcd/server/v3", "v3.6.5", "go.etcd.io/etcd/server/v3"),
    "versitygw": Recipe(
        "github.com/versity/versitygw", "v1.8.0", "github.com/versity/versitygw/cmd/versitygw"
    ),
    "kwok": Recipe("sigs.k8s.io/kwok", "v0.7.0", "sigs.k8s.io/kwok/cmd/kwok"),
}


def find(name: str) -> Path:
    """Return the path of the binary, which is built if need be. Raises Unavailable."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets and (Path(assets) / name).is_file():
        return Path(assets) / name
    if name == "etcd" and (installed := shutil.which("etcd")):
        return Path(installed)
    recipe = RECIPES[name]
    binary = cache_folder() / f"{name}-{recipe.version}" / name
    if not binary.is_file():
        with alone():
            if not binary.is_file():
                _build(name, recipe, binary)
    return binary


def build_program(name: str, source: str) -> Path:
    """Return a small static program of the tests' own, built from Go source. Raises Unavailable."""
    digest = hashlib.sha256(source.encode()).hexdigest()[:12]
    binary = cache_folder() / f"{name}-{digest}" / name
    with alone():
        if not binary.is_file():
            with tempfile.TemporaryDirectory(prefix="build-", dir=cache_folder()) as created:
                folder = Path(created)
                (folder / "go.mod").write_text("module build\n\ngo 1.24\n")
                (folder / "main.go").write_text(source)
                _compile(name, "-s -w", ".", folder, binary)
    return binary


def cache_folder() -> Path:
    """Return the folder of the user's cache with built and fetched files."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "collage-tests"


@contextmanager
def alone() -> Iterator[None]:
    """Let one process build at a time; the others use its result."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (cache_folder() / "building").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(name: str, recipe: Recipe, binary: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="build-", dir=cache_folder()) as created:
        folder = Path(created)
        _write_module(name, recipe, folder)
        _compile(name, recipe.flags, recipe.package, folder, binary)


def _compile(name: str, flags: str, package: str, folder: Path, binary: Path) -> None:
    output = folder / "binary"
    _go(name, folder, "build", "-trimpath", "-ldflags", flags, "-o", str(output), package)
    binary.parent.mkdir(parents=True, exist_ok=True)
    output.replace(binary)


def _write_module(name: str, recipe: Recipe, folder: Path) -> None:
    """Write a module that needs the recipe's one: `go install` refuses modules with replacements."""
    (folder / "go.mod").write_text("module build\n\ngo 1.24\n")
    (folder / "tools.go").write_text(
        f'//go:build tools\n\npackage tools\n\nimport _ "{recipe.package}"\n'
    )
    module = f"{recipe.module}@{recipe.version}"
    actual = json.loads(_go(name, folder, "mod", "download", "-json", module))
    staging = re.findall(
        r"^\s*(k8s\.io/[\w-]+) => \./staging/", Path(actual["GoMod"]).read_text(), re.M
    )
    for staged in staging:
        version = f"v0.{KUBERNETES.split('.', 1)[1]}"
        _go(name, folder, "mod", "edit", f"-replace={staged}={staged}@{version}")
    _go(name, folder, "get", module)
    _go(name, folder, "mod", "tidy")


def _go(name: str, folder: Path, *arguments: str) -> str:
    go = shutil.which("go")
    if go is None:
        raise Unavailable(
            f"no {name}: it is built with Go, which is not here; or set KUBEBUILDER_ASSETS"
        )
    try:
        done = subprocess.run(
            [go, *arguments],
            cwd=folder,
            env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=mod -buildvcs=false"},
            capture_output=True,
            text=True,
            timeout=BUILD_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"no {name}: `go {' '.join(arguments)}` takes too long") from error
    if done.returncode:
        reason = " ".join(done.stderr.split())[-300:]
        raise Unavailable(f"no {name}: `go {' '.join(arguments)}` failed: {reason}")
    return done.stdout


if __name__ == "__main__":
    for program in sys.argv[1:] or RECIPES:
        try:
            print(find(program))
        except Unavailable as reason:
            print(f"{reason}; tests that need it are skipped")
