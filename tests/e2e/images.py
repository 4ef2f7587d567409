"""The images of the Dockerfile, made by containers/build.sh as a user makes them, with buildah.

Layers stay in buildah's storage, so that a second build takes seconds. Where no registry can be reached, the
base image is the stand-in of base_image.sh. What the machine needs to reach package indexes (certificates,
pip's configuration) is mounted while building; `BUILD_FLAGS` replaces that.
"""

import functools
import os
import shutil
import subprocess
from pathlib import Path

from tests.servers.binaries import Unavailable
from tests.servers.kubelet import check_wanted

ROOT = Path(__file__).parents[2]
REPOSITORY = "localhost/collage-e2e"
TAG = "1"
TARGETS = ("controller", "measure", "serve-base")
BASE = "docker.io/library/python:3.11-slim-bookworm"
STAND_IN = f"{REPOSITORY}/base:{TAG}"
PULL_S, BUILD_S = 180, 3000
MACHINE = ("/etc/ssl/certs", "/etc/pip.conf")
"""Environment variables of a build behind a proxy."""


def reference(target: str) -> str:
    """Return the name of an image, as a pod asks for it."""
    return f"{REPOSITORY}/{target}:{TAG}"


@functools.cache
def build() -> None:
    """Build all three images. Raises Unavailable where there is no builder or no base."""
    check_wanted()
    if shutil.which("buildah") is None:
        raise Unavailable("no images: buildah is not installed")
    mounts = [f"--volume={folder}:{folder}:ro" for folder in MACHINE if Path(folder).exists()]
    arguments = {
        "BUILDER": "buildah", "REPOSITORY": REPOSITORY, "VERSION": TAG, "BASE_IMAGE": _base(),
        "BUILDAH_ISOLATION": "chroot", "BUILD_FLAGS": " ".join(mounts),
    }  # fmt: skip
    done = subprocess.run(
        [ROOT / "containers" / "build.sh"], env={**arguments, **os.environ}, timeout=BUILD_S,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]


def export(target: str, folder: Path) -> Path:
    """Write the image with all its layers as one archive."""
    archive = folder / f"{target}.tar"
    subprocess.run(
        ["buildah", "push", "--quiet", reference(target), f"docker-archive:{archive}:{reference(target)}"],
        check=True, capture_output=True,
    )  # fmt: skip
    return archive


def inspect(target: str) -> str:
    """Return buildah's description of the image: configuration, history, annotations; JSON."""
    command = ["buildah", "inspect", "--type", "image", reference(target)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _base() -> str:
    """Return the base image's name; it is there."""
    pull = ["buildah", "pull", "--quiet", "--policy", "missing", BASE]
    try:
        if subprocess.run(pull, capture_output=True, timeout=PULL_S).returncode == 0:
            return BASE
    except subprocess.TimeoutExpired:
        pass
    if shutil.which("debootstrap") is None:
        raise Unavailable(f"no images: {BASE} cannot be pulled, and debootstrap is not installed")
    created = subprocess.run(
        [ROOT / "tests" / "e2e" / "base_image.sh", STAND_IN], capture_output=True, text=True
    )
    if created.returncode:
        raise Unavailable(f"no images: {BASE} cannot be pulled or made: {created.stderr[-300:]}")
    return STAND_IN
