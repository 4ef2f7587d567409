"""Signature of a bundle: its signed statement, verified before any file of the bundle is parsed.

Digests prove the integrity of a bundle, and the statement its origin. It names the model (name, version,
digest), the environment, and the digest of manifest.json with every file's digest. It is an in-toto
Statement v1 with SLSA's provenance, in a DSSE envelope, beside the manifest as
`statement.<key>.<statement>.dsse.json` (prefixes of two digests). So several keys can sign one bundle, and
one bundle can be signed for several models. `collage.store.statement` writes it.

    keys = configured_keys()                     # of --verify-key or COLLAGE_VERIFY_KEYS
    manifest = verify_statement(folder.read, folder.names(), keys)     # a `BundleFolder`

The returned bytes are the verified ones: parse these instead of reading the file again.
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
from collage.runtime.envelope import MAX_ENVELOPE_BYTES, STATEMENT, EnvelopeError, open_envelope
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
    """Statement of a trusted key about a bundle; digests are SHA-256 in hex.

    Attributes:
        manifest: bytes of manifest.json.
        model: name of the model, a prefix of the bundle's possible aliases.
        version: version of the model in its registry, or "".
        environment: digest of the bundle's environment, or "".
        request: digest of the pipeline's request for the bundle, or "".
    """

    manifest: bytes
    model: str
    version: str
    environment: str
    request: str = ""


def verify_statement(
    read: Callable[[str], bytes], names: Sequence[str], keys: TrustedKeys
) -> bytes:
    """Return the bytes of manifest.json, signed by a trusted key; nothing is parsed before.

    Args:
        read: function returning the content of a bundle's file by name; raises OSError.
        names: names of the files in the bundle's folder.

    Raises:
        BundleError: no statement of this manifest is signed by a trusted key.
    """
    return verified_statement(read, names, keys).manifest


def verified_statement(
    read: Callable[[str], bytes],
    names: Sequence[str],
    keys: TrustedKeys,
    refusal: Callable[[Statement], str] = lambda _: "",
) -> Statement:
    """Return the first accepted statement signed by a trusted key.

    Args:
        read: see `verify_statement`.
        names: see `verify_statement`.
        keys: trusted keys.
        refusal: function returning a reason to skip a statement, or ""; default accepts all.

    Raises:
        BundleError: no statement of this manifest is signed by a trusted key and accepted.
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
    """Return the keys in `paths`, else of COLLAGE_VERIFY_KEYS, else None with one warning in the log.

    Raises:
        OptionError: a source has no valid key.
    """
    sources = list(paths) or named_sources(os.environ.get(VARIABLE, ""))
    if sources:
        return trusted_keys(sources)
    _say_unverified()
    return None


def named_sources(text: str) -> list[Path]:
    """Return the files and folders of public keys in a colon-separated setting."""
    return [Path(source) for source in text.split(os.pathsep) if source]


def is_statement(name: str) -> bool:
    """Tell whether `name` is the file name of a signed statement."""
    return _NAME.fullmatch(name) is not None


def is_alias_of(alias: str, model: str) -> bool:
    """Tell whether the alias is the model's name, optionally with a slash and a suffix."""
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
        raw = load_json(payload, MAX_ENVELOPE_BYTES)
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
