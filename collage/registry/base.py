"""The model registry interface: candidate versions, and tags and aliases for results.

A registry holds models, a model holds versions that never change, and an alias of a model names one of
its versions. Users request an optimization with the alias `candidate`; Collage answers with tags of that
version and, after its gate has passed, with the alias `optimized`. The two aliases differ, so Collage's
writes never request more work. Collage only reads the request alias.

Events and webhooks are not part of the interface. They shorten the delay; polling of `candidates` finds
lost events.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from collage.errors import ModelError, RegistryError

TAG_PREFIX = "collage."
SAMPLES_TAG = "collage.samples"
"""Tag of a version, set by users: path of its samples among its files, or `NO_SAMPLES_TAG`."""

NO_SAMPLES_TAG = "none"
"""Value of the tag for inputs that are generated although the version has an example."""

SAMPLES = "samples"
"""Name of a folder, and beginning of the names of files, that are a version's samples."""

OPTIONS_TAG = "collage.options"
"""Tag of a version, set by users: its options (`collage.pipeline.version_options`)."""

TEAM_TAG = "collage.team"
"""Tag of a version, set by users: the name of its team."""

MAX_TAG_LENGTH = 1000
"""Maximum length of a stored reason, in characters."""


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """One version of a model.

    Attributes:
        registry: address of the registry, for messages and keys.
        name: name of the model.
        version: version of the model.
        source: location of the files; their content is unknown before the download.
        registered_s: time of its registration, in seconds since 1970; 0.0 where unknown.
    """

    registry: str
    name: str
    version: str
    source: str
    registered_s: float = field(default=0.0, compare=False)

    def __str__(self) -> str:
        return f"{self.name} version {self.version} in {self.registry}"


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """Collage's record about a version; all fields are empty for an unprocessed one.

    Attributes:
        status: `running`, `optimized`, `not-faster` or `failed`.
        bundle: digest of the bundle in the store; `environment=digest,...` for several.
        speedup: speedup over the best original framework, in the slowest environment.
        reason: explanation of the status.
        environment: environments of the measurement, `name=digest,...`.
        options_digest: digest of the options that the version had then (`UserTags.digest`).
        node_seconds: node-seconds of the last run, in all environments; None where unknown.
        gpu_seconds: GPU-seconds of the last run.
        price: price of the last run, in the operator's currency.
    """

    status: str = ""
    bundle: str = ""
    speedup: float | None = None
    reason: str = ""
    environment: str = ""
    options_digest: str = ""
    node_seconds: float | None = None
    gpu_seconds: float | None = None
    price: float | None = None


@dataclass(frozen=True, slots=True)
class UserTags:
    """The settings of a version that users make.

    Attributes:
        options: text of its options; "" without any.
        team: name of its team; "" without one.
    """

    options: str = ""
    team: str = ""

    @property
    def digest(self) -> str:
        """Digest of the options; "" without any."""
        text = self.options.strip()
        return hashlib.sha256(text.encode()).hexdigest()[:16] if text else ""


class Registry(Protocol):
    """Models with versions. Every method raises RegistryError on failure."""

    @property
    def url(self) -> str:
        """Address for messages, without secrets."""
        ...

    def candidates(self) -> Iterator[ModelVersion]:
        """Iterate over the versions with the request alias, in order of model name."""
        ...

    def find(self, name: str, version: str | None = None) -> ModelVersion:
        """Return this version of the model, by default the one with the request alias."""
        ...

    def download(self, version: ModelVersion, folder: Path) -> Path:
        """Download the files into `folder`; return the .onnx file, with its data beside it.

        For a version of several .onnx files, the entries of one bundle, it is the folder of them.

        Raises:
            ModelError: the version has no ONNX model, or an incomplete one.
        """
        ...

    def samples(self, version: ModelVersion, folder: Path, path: str = "") -> tuple[Path, ...]:
        """Return the sample files of the version, in a `folder` that `download` has filled.

        Args:
            version: version of a model.
            folder: folder of the download.
            path: file or folder among the version's files; "": what the version itself names.

        Raises:
            ModelError: there is no such file, or an example cannot be read.
        """
        ...

    def user_tags(self, version: ModelVersion) -> UserTags:
        """Return what users have set for the version."""
        ...

    def options_place(self, version: ModelVersion) -> str:
        """Return the place of the version's options in words, whether or not it has any."""
        ...

    def status(self, version: ModelVersion) -> VersionStatus:
        """Return the last recorded status."""
        ...

    def record_status(self, version: ModelVersion, status: VersionStatus) -> None:
        """Record the status of the version; it replaces the earlier one."""
        ...

    def accept(self, version: ModelVersion) -> None:
        """Point the result alias to this version; only called after its gate has passed."""
        ...


def to_tags(status: VersionStatus) -> dict[str, str]:
    """Convert a status to tags, `collage.status` last; an empty field is an empty text.

    >>> to_tags(VersionStatus("optimized", speedup=1.5))["collage.speedup"]
    '1.5'
    """
    fields = {
        "bundle": status.bundle,
        "speedup": "" if status.speedup is None else f"{status.speedup:.6g}",
        "reason": " ".join(status.reason.split())[:MAX_TAG_LENGTH],
        "environment": status.environment,
        "options_digest": status.options_digest,
        "cost.node_seconds": _decimal(status.node_seconds, 3),
        "cost.gpu_seconds": _decimal(status.gpu_seconds, 3),
        "cost.price": _decimal(status.price, 6),
        "status": status.status,
    }
    return {f"{TAG_PREFIX}{name}": value for name, value in fields.items()}


def from_tags(tags: Mapping[str, str]) -> VersionStatus:
    """Convert tags to a status; an invalid number is None."""
    names = ("status", "bundle", "reason", "environment", "options_digest")
    return VersionStatus(
        speedup=_number(tags, "speedup"),
        node_seconds=_number(tags, "cost.node_seconds"),
        gpu_seconds=_number(tags, "cost.gpu_seconds"),
        price=_number(tags, "cost.price"),
        **{name: tags.get(f"{TAG_PREFIX}{name}", "") for name in names},
    )


def _number(tags: Mapping[str, str], name: str) -> float | None:
    try:
        return float(tags[f"{TAG_PREFIX}{name}"])
    except (KeyError, ValueError):
        return None


def _decimal(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def named_samples(folder: Path, path: str, label: object) -> Path:
    """Return the file or folder at a path among a version's files.

    Raises:
        ModelError: there is none, or it lies outside.
    """
    file = (folder / path).resolve()
    if not file.is_relative_to(folder.resolve()) or not file.exists():
        raise ModelError(
            f"{label} has no samples at {path!r}; log them with the version, or correct the path"
        )
    return file


def check_aliases(alias: str, accepted: str) -> None:
    """Raise RegistryError for equal aliases: each result would be a new request."""
    if alias == accepted:
        raise RegistryError(
            f"the alias {alias!r} cannot both ask for an optimization and say that it is done: every "
            "answer would start the next run. Configure two names"
        )
