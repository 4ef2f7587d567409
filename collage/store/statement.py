"""Signed statements of bundles, for verification by `collage.runtime.signature`.

The statement is SLSA provenance v1: the model (name, registered version, digest), the environment, the
version and, if known, the git revision of Collage, the toolchains, and the digests of the plan and its
measurements. It has no time stamp: a repeated signature with the same key gives the same file.
"""

import functools
import hashlib
import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from os import environ
from pathlib import Path
from typing import Any

from collage.errors import BundleError
from collage.runtime.bundle_folder import MANIFEST
from collage.runtime.envelope import STATEMENT, Signer
from collage.runtime.signature import PREDICATE_TYPE, STATEMENT_TYPE
from collage.store.aliases import slug
from collage.store.atomic_folder import flush_folder, write_durably
from collage.store.records import parse_object

BUILD_TYPE = "https://collage.dev/compile/v1"
BUILDER = "https://collage.dev/collage"
REVISION_VARIABLE = "SOURCE_REVISION"
"""Environment variable of images with the git revision of their source."""
MEASUREMENTS = ("plan.json", "summary.json", "report.json")
"""Files of a bundle with the plan, its costs and the latencies of the gate."""

Json = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class SignedModel:
    """The model in a bundle's statement.

    Attributes:
        name: first part of the aliases: `ocr` for `ocr/production`.
        version: version in the registry, or "".
        registered: name in the registry if it differs, or "".
        request: digest of the compile request, or "".
    """

    name: str
    version: str = ""
    registered: str = ""
    request: str = ""

    @classmethod
    def of_registry(cls, name: str, version: str = "", request: str = "") -> "SignedModel":
        """Return the model of this registered name, with the name for aliases of the pipeline."""
        return cls(slug(name), version, name, request)


def sign_bundle(folder: Path, signer: Signer, model: SignedModel) -> Path:
    """Write a signed statement beside the bundle's manifest; return its file.

    Raises:
        BundleError: the folder has no bundle, or is not writable.
    """
    try:
        name, content = signed_statement((folder / MANIFEST).read_bytes(), signer, model)
        file = folder / name
        write_durably(file, content)
        flush_folder(folder)
    except OSError as error:
        raise BundleError(f"{folder} cannot be signed: {error.strerror or error}") from error
    return file


def signed_statement(manifest: bytes, signer: Signer, model: SignedModel) -> tuple[str, bytes]:
    """Return the name and content of a signed statement's file. Raises BundleError: invalid manifest."""
    payload = statement(manifest, model)
    digest = hashlib.sha256(payload).hexdigest()
    name = f"statement.{signer.key_id[:16]}.{digest[:16]}.dsse.json"
    return name, signer.sign(STATEMENT, payload)


def model_file(folder: Path) -> str:
    """Return the name of the bundle's model by its file; "" for several.

    Raises:
        BundleError: no bundle.
    """
    try:
        models = _models(_provenance((folder / MANIFEST).read_bytes()))
    except OSError as error:
        raise BundleError(f"{folder} holds no bundle: {error.strerror}") from error
    return Path(models[0]["path"]).stem if len(models) == 1 else ""


def statement(manifest: bytes, model: SignedModel) -> bytes:
    """Return the statement of a manifest. Raises BundleError for an invalid manifest."""
    provenance = _provenance(manifest)
    files = _fields(manifest)["files"]
    parameters: dict[str, object] = {"environment": provenance.get("environment_digest", "")}
    if model.request:
        parameters["request"] = model.request
    named = {"name": model.name, "version": model.version}
    if model.registered and model.registered != model.name:
        named["registered"] = model.registered
    predicate = {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {"model": named, **parameters},
            "internalParameters": {"seed": provenance.get("seed", 0)},
            "resolvedDependencies": _dependencies(provenance),
        },
        "runDetails": {
            "builder": {
                "id": BUILDER,
                "version": {"collage": provenance.get("collage_version", "")},
            },
            "byproducts": [
                {"name": name, "digest": {"sha256": files[name]}}
                for name in MEASUREMENTS
                if name in files
            ],
        },
    }
    document = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": MANIFEST, "digest": {"sha256": hashlib.sha256(manifest).hexdigest()}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": predicate,
    }
    return json.dumps(document, sort_keys=True).encode()


@functools.cache
def revision() -> str:
    """Return the git revision of this Collage, or "" if it is unknown."""
    if configured := environ.get(REVISION_VARIABLE, ""):
        return "" if configured == "unknown" else configured
    try:
        origin = json.loads(distribution("collage").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        origin = {}
    if commit := origin.get("vcs_info", {}).get("commit_id", ""):
        return str(commit)
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return ""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "--verify", "HEAD"],
            capture_output=True, text=True, timeout=10, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):  # no git, or one that hangs
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _dependencies(provenance: dict[str, Any]) -> list[Json]:
    models: list[Json] = [
        {"name": model["path"], "digest": {"sha256": model["sha256"]}}
        for model in _models(provenance)
    ]
    version = provenance.get("collage_version", "")
    source: dict[str, object] = {"name": "collage", "uri": f"pkg:pypi/collage@{version}"}
    if commit := revision():
        source["digest"] = {"gitCommit": commit}
    toolchains: dict[str, str] = provenance.get("toolchains") or {}
    return [
        *models,
        source,
        *(
            {"name": name, "annotations": {"identity": identity}}
            for name, identity in sorted(toolchains.items())
        ),
    ]


def _provenance(manifest: bytes) -> dict[str, Any]:
    return dict(_fields(manifest).get("provenance") or {})


def _models(provenance: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the path and digest of each entry's ONNX file. Raises BundleError for garbled ones."""
    try:
        return [
            {"path": str(model["path"]), "sha256": str(model["sha256"])}
            for model in provenance.get("models") or []
        ]
    except (KeyError, TypeError) as error:
        raise BundleError(
            f"a bundle's manifest lacks or garbles its models: {error}; compile the model again"
        ) from error


def _fields(manifest: bytes) -> dict[str, Any]:
    try:
        fields = parse_object(manifest)
        if not isinstance(fields["files"], dict):
            raise ValueError("files")
        return fields
    except (ValueError, KeyError) as error:
        raise BundleError(
            f"a bundle's manifest lacks or garbles {error}; it is not signed. Compile the model again"
        ) from error
