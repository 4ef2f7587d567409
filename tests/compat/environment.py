"""An environment of its own for one version of a package, over the checkout's.

What the version needs is installed into it and comes first on the path; other packages are the checkout's.
So an environment costs megabytes, and pip still resolves the version's own requirements.
"""

import os
import subprocess
import sys
import venv
from pathlib import Path

from tests.documents import ROOT


def make_environment(folder: Path, requirement: str) -> Path:
    """Create the environment with the requirement; return its interpreter.

    Raises:
        subprocess.CalledProcessError: pip cannot install it.
    """
    venv.create(folder, clear=True, symlinks=True)
    python = folder / "bin" / "python"
    site = (
        folder
        / "lib"
        / f"python{sys.version_info.major}.{sys.version_info.minor}"
        / "site-packages"
    )
    below = [str(ROOT), *(path for path in sys.path if path.endswith("site-packages"))]
    (site / "checkout.pth").write_text("\n".join(below))
    for library in Path(sys.prefix, "lib").glob("libdnnl*"):
        (folder / "lib" / library.name).symlink_to(library.resolve())
    subprocess.run(
        [str(python), "-m", "pip", "install", "-q", "--no-warn-script-location", requirement],
        check=True,
    )
    return python


def run_tests(python: Path, tests: tuple[str, ...], log: Path) -> tuple[bool, str]:
    """Run the tests with an interpreter; return whether they passed, and pytest's last line."""
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    with log.open("w") as out:
        done = subprocess.run(
            [str(python), "-m", "pytest", "-p", "no:cacheprovider", "-m", "not full", *tests],
            cwd=ROOT, env={**os.environ, "PATH": path}, stdout=out, stderr=out, check=False,
        )  # fmt: skip
    lines = [line for line in log.read_text().splitlines() if line.strip()]
    return done.returncode == 0, lines[-1].strip("= ") if lines else "no output"
