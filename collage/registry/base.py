"""What a model registry is to Collage: versions that ask to be optimized, and a place to answer.

A registry holds models, a model holds versions that never change, and an alias of a model names one of
its versions. Whoever wants a version optimized gives it the alias `candidate`; Collage answers with
tags of that version and, once its gate has passed, with the alias `optimized`. The two aliases differ,
so that nothing Collage writes can ask for more work. The asking alias is only read.

Events and webhooks are not part of it: they make an answer come sooner, but whatever they lose is
found by reading `candidates` again.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from collage.errors import RegistryError

TAG_PREFIX = "collage."
MAX_REASON = 1000
"""Characters of a reason that are kept."""


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """One version of a model.

    Attributes:
        registry: its address, for messages and keys.
        source: where the files are; what they hold is not known before they are downloaded.
    """

    registry: str
    name: str
    version: str
    source: str

    def __str__(self) -> str:
        return f"{self.name} version {self.version} in {self.registry}"


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """What Collage wrote about a version; all empty where it has not seen it.

    Attributes:
        status: one word: `running`, `optimized`, `not-faster`, `failed`.
        bundle: digest in the store; `environment=digest,...` where there are several.
        speedup: over the best original framework, of the slowest environment.
        environment: what was measured on, `name=digest,...`.
    """

    status: str = ""
    bundle: str = ""
    speedup: float | None = None
    reason: str = ""
    environment: str = ""


class Registry(Protocol):
    """Models with versions. Every method raises RegistryError when the registry does not do it."""

    @property
    def url(self) -> str:
        """Where it is, for messages: no secret."""
        ...

    def candidates(self) -> Iterator[ModelVersion]:
        """Iterate over the versions that carry the asking alias now, by name."""
        ...

    def find(self, name: str, version: str | None = None) -> ModelVersion:
        """Return this version of the model, or the one that carries the asking alias."""
        ...

    def download(self, version: ModelVersion, folder: Path) -> Path:
        """Write the files into `folder` and return the .onnx file, with its data beside it.

        Raises:
            ModelError: the version holds no ONNX model, or not all of it.
        """
        ...

    def status(self, version: ModelVersion) -> VersionStatus:
        """Return what was marked last."""
        ...

    def mark(self, version: ModelVersion, status: VersionStatus) -> None:
        """Let `status` be what is known of the version, in place of what was marked before."""
        ...

    def accept(self, version: ModelVersion) -> None:
        """Let the answering alias name this version; only called once its gate has passed."""
        ...


def to_tags(status: VersionStatus) -> dict[str, str]:
    """Write the status as tags, `collage.status` last; an empty field is an empty text.

    >>> to_tags(VersionStatus("optimized", speedup=1.5))["collage.speedup"]
    '1.5'
    """
    fields = {
        "bundle": status.bundle,
        "speedup": "" if status.speedup is None else f"{status.speedup:.6g}",
        "reason": " ".join(status.reason.split())[:MAX_REASON],
        "environment": status.environment,
        "status": status.status,
    }
    return {f"{TAG_PREFIX}{name}": value for name, value in fields.items()}


def from_tags(tags: Mapping[str, str]) -> VersionStatus:
    """Read what `to_tags` wrote; a speedup that somebody garbled is none."""
    try:
        speedup = float(tags[f"{TAG_PREFIX}speedup"])
    except (KeyError, ValueError):
        speedup = None
    names = ("status", "bundle", "reason", "environment")
    return VersionStatus(
        speedup=speedup, **{name: tags.get(f"{TAG_PREFIX}{name}", "") for name in names}
    )


def check_aliases(alias: str, accepted: str) -> None:
    """Raise RegistryError where an answer would be a question again."""
    if alias == accepted:
        raise RegistryError(
            f"the alias {alias!r} cannot both ask for an optimization and say that it is done: every "
            "answer would start the next run. Configure two names"
        )
