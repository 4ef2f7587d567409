"""The ranges of versions in pyproject.toml, and the tests that use each package most."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from tests.documents import ROOT

TESTS: Mapping[str, tuple[str, ...]] = {
    "prefect": (
        "tests/flows/test_releases.py", "tests/flows/test_reconcile.py", "tests/flows/test_cancellation.py",
    ),
    "kubernetes": (
        "tests/cluster/test_manifests.py", "tests/cluster/test_jobs.py", "tests/containers/test_check.py",
    ),
    "boto3": (
        "tests/store/test_protocol.py", "tests/store/test_s3_reading.py", "tests/store/test_s3_writing.py",
    ),
    "mlflow-skinny": ("tests/registry/test_protocol.py", "tests/registry/test_mlflow.py"),
    "pydantic": ("tests/test_settings.py", "tests/golden/test_interfaces.py"),
    "onnx": ("tests/frontend/test_load.py", "tests/frontend/test_inputs.py"),
    "numpy": ("tests/frontend/test_load.py", "tests/verify"),
    "uvicorn": ("tests/containers/test_connections.py", "tests/containers/test_receiver.py"),
}  # fmt: skip
"""Tests of each package that `make compat` knows; those marked "full" are left out."""


@dataclass(frozen=True)
class Range:
    """The declared range of a package, and the versions at its ends."""

    package: str
    specifiers: SpecifierSet
    oldest: Version
    newest: Version


def declared_range(package: str) -> Range:
    """Return the range of a package, with the ends that the index has today."""
    specifiers = declared_specifiers(package)
    oldest, newest = range_ends(specifiers, index_versions(package))
    return Range(package, specifiers, oldest, newest)


def declared_specifiers(package: str) -> SpecifierSet:
    """Return the specifiers of all requirements of pyproject.toml for the package, together.

    Raises:
        ValueError: pyproject.toml does not require the package.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    requirements = [Requirement(text) for requirements in lists for text in requirements]
    own = [requirement for requirement in requirements if requirement.name == package]
    if not own:
        raise ValueError(f"pyproject.toml does not require {package}")
    specifiers = SpecifierSet()
    for requirement in own:
        specifiers &= requirement.specifier
    return specifiers


def range_ends(specifiers: SpecifierSet, versions: Iterable[Version]) -> tuple[Version, Version]:
    """Return the oldest and the newest version in the range.

    Raises:
        ValueError: no version is in it.
    """
    allowed = sorted(specifiers.filter(versions))
    if not allowed:
        raise ValueError(f"no version is in {specifiers}")
    return allowed[0], allowed[-1]


def index_versions(package: str) -> list[Version]:
    """Return the package's versions on the index, without pre-releases."""
    command = [sys.executable, "-m", "pip", "index", "versions", package]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (line,) = re.findall(r"^Available versions: (.+)$", text, re.MULTILINE)
    return [Version(version) for version in line.split(", ")]
