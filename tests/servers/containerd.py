"""containerd for tests: Debian's, with root, state and socket in a folder of the test's own."""

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.servers.binaries import Unavailable, build_program
from tests.servers.bridge import Bridge
from tests.servers.debian import find_program

SANDBOX = "localhost/pause:1"
START_S = 30.0
STOP_S = 30.0
_PAUSE = """package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGINT, syscall.SIGTERM)
	<-end
}
"""
_CRI = 'plugins."io.containerd.grpc.v1.cri"'
_CONFIG = """version = 2
root = "{folder}/root"
state = "{folder}/state"
disabled_plugins = ["io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing"]
[grpc]
address = "{folder}/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
path = "{folder}/opt"
[{cri}]
sandbox_image = "{sandbox}"
restrict_oom_score_adj = true
disable_apparmor = true
netns_mounts_under_state_dir = true
[{cri}.cni]
bin_dir = "{plugins}"
conf_dir = "{network}"
[{cri}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[{cri}.containerd.runtimes.runc.options]
BinaryName = "{runc}"
SystemdCgroup = false
"""


class Containerd:
    """One containerd; its socket is `folder`/containerd.sock."""

    def __init__(self, folder: Path, bridge: Bridge) -> None:
        self.folder = folder
        self._programs = find_program("containerd", "containerd").parent
        folder.mkdir()
        text = _CONFIG.format(
            folder=folder, cri=_CRI, sandbox=SANDBOX, plugins=bridge.plugins, network=bridge.folder,
            runc=find_program("runc", "runc"),
        )  # fmt: skip
        (folder / "config.toml").write_text(text)
        pause = pause_image(folder / "pause.tar")
        self._shims = Path("/run/containerd")  # the one place that cannot be chosen
        self._had_shims = self._shims.exists()
        self._log = (folder / "containerd.log").open("wb")
        self._process = subprocess.Popen(
            [self._programs / "containerd", "--config", folder / "config.toml"],
            stdout=self._log, stderr=self._log,
            env={"PATH": f"{self._programs}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
        )  # fmt: skip
        try:
            self._await(lambda: self._ctr("version"))
            self.load(pause)
        except BaseException:
            self.close()
            raise

    def load(self, archive: Path) -> None:
        """Import the images of an archive that docker, podman or buildah wrote."""
        self._ctr("images", "import", str(archive))

    def tasks(self) -> list[str]:
        """Return the ids of the containers whose processes are known."""
        return self._ctr("tasks", "list", "--quiet").split()

    def log(self) -> str:
        return (self.folder / "containerd.log").read_text(errors="replace")

    def close(self) -> None:
        """Kill each running container, then the server itself."""
        if self._process.poll() is None:
            for container_id in self._ids("tasks"):
                self._try("tasks", "delete", "--force", container_id)
            for container_id in self._ids("containers"):
                self._try("containers", "delete", container_id)
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
        if not self._had_shims:
            shutil.rmtree(self._shims, ignore_errors=True)

    def _ids(self, kind: str) -> list[str]:
        return self._try(kind, "list", "--quiet").split()

    def _try(self, *words: str) -> str:
        try:
            return self._ctr(*words)
        except Unavailable as error:
            print(error)
            return ""

    def _ctr(self, *words: str) -> str:
        address = ["--address", str(self.folder / "containerd.sock"), "--namespace", "k8s.io"]
        done = subprocess.run(
            [self._programs / "ctr", *address, *words], capture_output=True, text=True, timeout=600
        )
        if done.returncode:
            raise Unavailable(
                f"no containerd: `ctr {' '.join(words)}` failed: {done.stderr[-300:]}"
            )
        return done.stdout

    def _await(self, ready: Callable[[], object]) -> None:
        end = time.monotonic() + START_S
        while True:
            if self._process.poll() is not None:
                raise Unavailable(f"no containerd: it ended at once: {self.log()[-300:]}")
            try:
                ready()
                return
            except Unavailable:
                if time.monotonic() > end:
                    raise
            time.sleep(0.2)


def pause_image(archive: Path) -> Path:
    """Write the image that holds a pod's network: one program that waits."""
    program = build_program("pause", _PAUSE).read_bytes()
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        _add(tar, "pause", program, 0o755)
    digest = hashlib.sha256(layer.getvalue()).hexdigest()
    config = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine], "os": "linux",
        "config": {"Entrypoint": ["/pause"], "User": "65535:65535"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }  # fmt: skip
    manifest = [{"Config": "config.json", "RepoTags": [SANDBOX], "Layers": ["layer.tar"]}]
    with tarfile.open(archive, "w") as tar:
        _add(tar, "layer.tar", layer.getvalue())
        _add(tar, "config.json", json.dumps(config).encode())
        _add(tar, "manifest.json", json.dumps(manifest).encode())
    return archive


def _add(tar: tarfile.TarFile, name: str, data: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    tar.addfile(entry, io.BytesIO(data))
