"""Debian's programs for tests: from PATH, else unpacked into the user's cache; nothing is installed."""

import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.servers.binaries import Unavailable, alone, cache_folder

DOWNLOAD_TIMEOUT_S = 300.0


def find_program(name: str, package: str) -> Path:
    """Return the program's path. Raises Unavailable."""
    installed = shutil.which(name, path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin")
    if installed:
        return Path(installed)
    for folder in ("usr/sbin", "usr/bin"):
        actual = _unpacked(package) / folder / name
        if actual.is_file():
            return actual
    raise Unavailable(f"no {name}: Debian's package {package} does not hold it")


def find_folder(place: str, package: str) -> Path:
    """Return a folder of the package, e.g. "usr/lib/cni". Raises Unavailable."""
    installed = Path("/") / place
    return installed if installed.is_dir() else _unpacked(package) / place


def _unpacked(package: str) -> Path:
    folder = cache_folder() / f"debian-{package}"
    if not folder.is_dir():
        with alone():
            if not folder.is_dir():
                _unpack(package, folder)
    return folder


def _unpack(package: str, folder: Path) -> None:
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            raise Unavailable(f"no {package}: it comes from Debian, and there is no {program} here")
    with tempfile.TemporaryDirectory(prefix="package-", dir=cache_folder()) as created:
        _run(package, ["apt-get", "download", "-q", package], created)
        (file,) = Path(created).glob("*.deb")
        root = Path(created) / "root"
        _run(package, ["dpkg-deb", "-x", str(file), str(root)], created)
        root.replace(folder)


def _run(package: str, command: list[str], folder: str) -> None:
    try:
        subprocess.run(
            command, cwd=folder, check=True, capture_output=True, timeout=DOWNLOAD_TIMEOUT_S
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"no {package}: `{' '.join(command)}` takes too long") from error
    except subprocess.CalledProcessError as error:
        reason = " ".join(error.stderr.decode(errors="replace").split())[-300:]
        raise Unavailable(f"no {package}: `{' '.join(command)}` failed: {reason}") from error
