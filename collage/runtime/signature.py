"""Who made a bundle: its signed statement, which is checked before anything of the bundle is parsed.

Digests prove that a bundle is what somebody published; the statement says who, and what it is: model
(name, version, digest), environment, and the digest of manifest.json, which names every file's digest.
It is an in-toto Statement v1 with SLSA's provenance, in a DSSE envelope, beside the manifest as
`statement.<key>.<statement>.dsse.json` (the beginnings of two digests): several keys can sign one
bundle, and one bundle can be signed for several models. `collage.store.statement` writes it.

    keys = configured_keys()                     # of --verify-key or COLLAGE_VERIFY_KEYS
    manifest = verify_statement(folder.read, folder.names(), keys)     # a `BundleFolder`

The bytes that are returned are those that were verified: parse these, not the file once more.
"""

import functools
import hashlib
import logging
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from collage.errors import BundleError
from collage.runtime.bundle_folder import MANIFEST
from collage.runtime.envelope import MAX_BYTES, STATEMENT, EnvelopeError, open_envelope
from collage.runtime.json_fields import load_json
from collage.runtime.trust import TrustedKeys, trusted_keys

__all__ = [
    "Statement",
    "TrustedKeys",
    "configured_keys",
    "is_statement",
    "trusted_keys",
    "verified_statement",
    "verify_statement",
]

VARIABLE = "COLLAGE_VERIFY_KEYS"
"""Environment variable: files and folders of public keys, separated by colons."""
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
MAX_STATEMENTS = 64
_NAME = re.compile(r"statement\.[0-9a-f]{16}\.[0-9a-f]{16}\.dsse\.json")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Statement:
    """What a trusted key says of a bundle; the digests are SHA-256 in hex.

    Attributes:
        manifest: the bytes of manifest.json.
        model: name of the model; aliases that begin with it may stand for the bundle.
        version: of the model in its registry, or "".
        environment: digest of the environment that the bundle was made for, or "".
        request: digest of the pipeline's request that it answers, or "".
    """

    manifest: bytes
    model: str
    version: str
    environment: str
    request: str = ""


def verify_statement(
    read: Callable[[str], bytes], names: Sequence[str], keys: TrustedKeys
) -> bytes:
    """Return the bytes of manifest.json, which a trusted key signed; nothing is parsed before.

    Args:
        read: content of a file of the bundle, by its name; OSError where it cannot be read.
        names: the files of the bundle's folder; those that are no statement do not matter.

    Raises:
        BundleError: no statement, or none that is by a trusted key and of this manifest.
    """
    return verified_statement(read, names, keys).manifest


def verified_statement(
    read: Callable[[str], bytes],
    names: Sequence[str],
    keys: TrustedKeys,
    refusal: Callable[[Statement], str] = lambda _: "",
) -> Statement:
    """Return the statement that a trusted key signed.

    Args:
        read: as of `verify_statement`.
        names: as of `verify_statement`.
        refusal: why a statement is not the wanted one (a bundle may have several), or "".

    Raises:
        BundleError: no statement, or none that is by a trusted key, of this manifest and wanted.
    """
    manifest = _content(read, MANIFEST)
    statements = sorted(filter(is_statement, names))[:MAX_STATEMENTS]
    if not statements:
        raise BundleError(
            "the bundle is not signed: no statement lies beside its manifest. Publish it with "
            "--sign-key, or look for one that is signed"
        )
    reasons = []
    for name in statements:
        try:
            return _verified(_content(read, name), manifest, keys, refusal)
        except EnvelopeError as error:
            reasons.append(f"{name}: {error}")
    raise BundleError(
        "no trusted key signed the bundle as it is. Do not use it; find out who changed it, or trust "
        "the key of whoever signed it:\n  " + "\n  ".join(reasons)
    )


def configured_keys(paths: Sequence[Path] = ()) -> TrustedKeys | None:
    """Return the keys in `paths`, else those of COLLAGE_VERIFY_KEYS; None, and say so once, without.

    Raises:
        OptionError: a source of keys that is named holds none.
    """
    sources = list(paths) or named_sources(os.environ.get(VARIABLE, ""))
    if sources:
        return trusted_keys(sources)
    _say_unverified()
    return None


def named_sources(text: str) -> list[Path]:
    """The files and folders of public keys in a setting, where colons separate them."""
    return [Path(source) for source in text.split(os.pathsep) if source]


def is_statement(name: str) -> bool:
    """Tell whether a file of this name in a bundle's folder is a signed statement."""
    return _NAME.fullmatch(name) is not None


def is_alias_of(alias: str, model: str) -> bool:
    """Tell whether the alias is the model's: its name, or its name, a slash, and more."""
    return bool(model) and (alias == model or alias.startswith(f"{model}/"))


@functools.cache
def _say_unverified() -> None:
    log.warning(
        "signatures of bundles are not verified: no key is configured (--verify-key or %s)",
        VARIABLE,
    )


def _content(read: Callable[[str], bytes], name: str) -> bytes:
    try:
        return read(name)
    except OSError as error:
        raise BundleError(f"{name} of the bundle cannot be read: {error.strerror}") from error


def _verified(
    data: bytes, manifest: bytes, keys: TrustedKeys, refusal: Callable[[Statement], str]
) -> Statement:
    payload, signers = open_envelope(data, STATEMENT, keys)
    statement = _parsed(payload, manifest)
    if not keys.may_sign(signers, statement.model):
        raise EnvelopeError(f"its key may not sign for the model {statement.model!r}")
    if reason := refusal(statement):
        raise EnvelopeError(reason)
    return statement


def _parsed(payload: bytes, manifest: bytes) -> Statement:
    digest = hashlib.sha256(manifest).hexdigest()
    try:
        raw = load_json(payload, MAX_BYTES)
        if (raw["_type"], raw["predicateType"]) != (STATEMENT_TYPE, PREDICATE_TYPE):
            raise EnvelopeError("it is a statement of another kind")
        subjects = {subject["name"]: subject["digest"]["sha256"] for subject in raw["subject"]}
        parameters = raw["predicate"]["buildDefinition"]["externalParameters"]
        model = parameters["model"]
        texts = (
            model["name"],
            model["version"],
            parameters["environment"],
            parameters.get("request", ""),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise EnvelopeError("it is signed, and no statement of a bundle") from error
    if subjects.get(MANIFEST) != digest:
        raise EnvelopeError("it is of another manifest")
    if not texts[0] or not all(isinstance(text, str) for text in texts):
        raise EnvelopeError("it is signed, and no statement of a bundle")
    return Statement(manifest, *texts)
