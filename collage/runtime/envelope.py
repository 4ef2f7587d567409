"""DSSE envelopes: signed documents. The signature also covers the kind of document.

The signature is over `DSSEv1 <length> <kind> <length> <payload>` (the pre-authentication encoding of
https://github.com/secure-systems-lab/dsse), so a signed alias record is never taken for a signed
statement. An envelope is checked against the trusted keys before its payload is parsed. The envelope
itself is unsigned, so it is read with limits. Ed25519 is deterministic: signing again gives the same bytes.

Keys are PEM files as `openssl genpkey -algorithm ed25519` makes them. Needs the extra `sign`.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from collage.errors import OptionError
from collage.runtime.json_fields import load_json
from collage.runtime.trust import RefusedKeyError, TrustedKeys, key_id

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

STATEMENT = "application/vnd.in-toto+json"
"""Kind of a bundle's statement: in-toto's, for verification by other tools."""
ALIAS = "application/vnd.collage.alias+json"
"""Kind of an alias record."""

MAX_ENVELOPE_BYTES = 1 << 20
"""Size limit of an envelope; a statement has a few kilobytes."""
MAX_SIGNATURES = 16


class EnvelopeError(Exception):
    """The envelope proves nothing; the message has the reason, for a BundleError or StoreError."""


class Signer:
    """A private Ed25519 key."""

    def __init__(self, file: Path) -> None:
        """Read a PEM file without a passphrase. Raises OptionError for any other file."""
        self._key = _private_key(file)
        self.public = self._key.public_key().public_bytes_raw()
        self.key_id = key_id(self.public)

    def sign(self, kind: str, payload: bytes) -> bytes:
        """Return the envelope, as JSON in one line."""
        signature = self._key.sign(_encoding(kind, payload))
        envelope = {
            "payloadType": kind,
            "payload": b64encode(payload).decode(),
            "signatures": [{"keyid": self.key_id, "sig": b64encode(signature).decode()}],
        }
        return json.dumps(envelope, sort_keys=True).encode() + b"\n"


def open_envelope(data: bytes, kind: str, keys: TrustedKeys) -> tuple[bytes, tuple[str, ...]]:
    """Return the payload, and the ids of the trusted keys with a signature for this kind of document.

    Raises:
        EnvelopeError: the envelope is damaged, of another kind, or has no signature by a valid key.
    """
    signed_kind, payload, signatures = _parsed(data)
    if signed_kind != kind:
        raise EnvelopeError(f"it is signed as {signed_kind!r}, not as {kind!r}")
    signers, reasons = [], []
    for name, signature in signatures.items():
        try:
            if keys.verifies(name, signature, _encoding(kind, payload)):
                signers.append(name)
            else:
                reasons.append(f"the signature by the key {name[:16]!r} is wrong")
        except RefusedKeyError as error:
            reasons.append(str(error))
    if not signers:
        raise EnvelopeError("; ".join(reasons) or "it holds no signature")
    return payload, tuple(signers)


def unverified_payload(data: bytes) -> bytes:
    """Return the payload without verification, for readers without keys. Raises EnvelopeError."""
    return _parsed(data)[1]


def _encoding(kind: str, payload: bytes) -> bytes:
    head = kind.encode()
    return b"DSSEv1 %d %b %d %b" % (len(head), head, len(payload), payload)


def _parsed(data: bytes) -> tuple[str, bytes, dict[str, bytes]]:
    """Kind, payload, and signatures by key id."""
    if len(data) > MAX_ENVELOPE_BYTES:
        raise EnvelopeError(f"it has {len(data)} bytes, and {MAX_ENVELOPE_BYTES} are allowed")
    try:
        raw = load_json(data, MAX_ENVELOPE_BYTES)
        kind, payload = raw["payloadType"], b64decode(raw["payload"], validate=True)
        signatures = [_signature(entry) for entry in raw["signatures"]]
    except (ValueError, KeyError, TypeError) as error:
        raise EnvelopeError("it is damaged") from error
    if not isinstance(kind, str) or len(signatures) > MAX_SIGNATURES:
        raise EnvelopeError("it is damaged")
    return kind, payload, dict(signatures)


def _signature(raw: Mapping[str, str]) -> tuple[str, bytes]:
    name = raw["keyid"]
    if not isinstance(name, str):
        raise TypeError("keyid")
    return name, b64decode(raw["sig"], validate=True)


def _private_key(file: Path) -> "Ed25519PrivateKey":
    serialization, ed25519 = _cryptography()
    try:
        key = serialization.load_pem_private_key(file.read_bytes(), None)
    except OSError as error:
        raise OptionError(f"the key {file} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise OptionError(
            f"{file} is no private Ed25519 key in PEM without a passphrase: make one with `openssl "
            f"genpkey -algorithm ed25519 -out {file.name}`"
        )
    private_key: Ed25519PrivateKey = key
    return private_key


def _cryptography() -> tuple[ModuleType, ModuleType]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise OptionError(
            f"signatures need cryptography ({error}): pip install 'collage[sign]'"
        ) from None
    return serialization, ed25519
