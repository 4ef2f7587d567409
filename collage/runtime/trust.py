"""Trusted public keys with their validity and models, and revoked keys.

A source of keys is

* a PEM file with one or several public keys;
* a JSON file: `{"keys": [{"pem": "-----BEGIN PUBLIC KEY-----...", "not_before": "2026-01-01T00:00:00Z",
  "not_after": "2027-01-01T00:00:00Z", "models": ["ocr", "teams/ocr/*"]}], "revoked": ["<key id>"]}`.
  Instead of `pem`, `file` names a PEM file beside it. All fields but the key are optional;
* a folder, such as a mounted Secret or ConfigMap: its `*.pem`, `*.pub` and `*.json` files.

Several sources are merged, and a further entry only restricts a key: a key revoked in one source is revoked,
and its validity is the intersection of all its entries. A signature has no trustworthy time, so an expired
key is invalid for older signatures too: sign the bundles in use with the next key first. A key's id is the
SHA-256 of its 32 raw bytes, in hex.

Expiry is judged by the verifying machine's clock.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path

from collage.errors import OptionError

SUFFIXES = (".pem", ".pub", ".json")
_PEM = re.compile(rb"-----BEGIN PUBLIC KEY-----.*?-----END PUBLIC KEY-----", re.DOTALL)
_KEY_ID = re.compile(r"[0-9a-f]{64}")
_FIELDS = {"pem", "file", "not_before", "not_after", "models"}


class RefusedKeyError(Exception):
    """A key is unknown, revoked, or outside its validity; the message has the reason."""


def key_id(raw: bytes) -> str:
    """Return the id of a public key from its 32 raw bytes."""
    return hashlib.sha256(raw).hexdigest()


@dataclass(frozen=True, slots=True)
class TrustedKey:
    """A public key with its validity.

    Attributes:
        raw: the key's 32 bytes.
        not_before: start of the validity; None is unlimited.
        not_after: end of the validity; None is unlimited.
        models: groups of patterns (`*`) of model names; a model must match one pattern of each group,
            and without groups every model matches.
    """

    raw: bytes
    not_before: datetime | None = None
    not_after: datetime | None = None
    models: tuple[tuple[str, ...], ...] = ()

    def refusal(self, time: datetime) -> str:
        """Return the reason why the key is invalid at `time`, or ""."""
        name = f"the key {key_id(self.raw)[:16]}"
        if self.not_before and time < self.not_before:
            return f"{name} counts from {self.not_before.isoformat()} on"
        if self.not_after and time >= self.not_after:
            return f"{name} expired at {self.not_after.isoformat()}"
        return ""

    def may_sign(self, model: str) -> bool:
        """Tell whether the key may sign for the model of this name."""
        return all(
            any(fnmatchcase(model, pattern) for pattern in patterns) for patterns in self.models
        )

    def restricted(self, second: "TrustedKey") -> "TrustedKey":
        """Return the intersection of two entries for a key."""
        starts = [start for start in (self.not_before, second.not_before) if start]
        ends = [end for end in (self.not_after, second.not_after) if end]
        return replace(
            self,
            not_before=max(starts, default=None),
            not_after=min(ends, default=None),
            models=self.models + second.models,
        )


@dataclass(frozen=True, slots=True)
class TrustedKeys:
    """Keys by id; `revoked` has precedence."""

    keys: Mapping[str, TrustedKey]
    revoked: frozenset[str] = frozenset()
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)

    def verifies(self, name: str, signature: bytes, text: bytes) -> bool:
        """Tell whether the signature by the key with this id is valid.

        Raises:
            RefusedKeyError: the key is unknown, revoked, or not yet or no longer valid.
        """
        if name in self.revoked:
            raise RefusedKeyError(f"the key {name[:16]} is revoked")
        key = self.keys.get(name)
        if key is None:
            raise RefusedKeyError(f"the key {name[:16]!r} is not among the trusted ones")
        if reason := key.refusal(self.clock()):
            raise RefusedKeyError(reason)
        return _is_signed(key.raw, signature, text)

    def may_sign(self, names: Sequence[str], model: str) -> bool:
        """Tell whether one of the keys with these ids may sign for the model."""
        return any(self.keys[name].may_sign(model) for name in names)

    def joined(self, second: "TrustedKeys") -> "TrustedKeys":
        """Return the keys of both, each with the intersection of its entries."""
        keys = dict(self.keys)
        for name, key in second.keys.items():
            keys[name] = keys[name].restricted(key) if name in keys else key
        return replace(self, keys=keys, revoked=self.revoked | second.revoked)


def trusted_keys(paths: Sequence[Path]) -> TrustedKeys:
    """Read public keys from PEM files, trust files (JSON) and folders of them.

    Raises:
        OptionError: a file cannot be read or parsed, no key is left, or `cryptography` is missing.
    """
    keys = TrustedKeys({})
    for file in [file for path in paths for file in _files(path)]:
        keys = keys.joined(_trust_file(file) if file.suffix == ".json" else _pem_file(file))
    if not set(keys.keys) - keys.revoked:
        named = ", ".join(map(str, paths)) or "nothing"
        raise OptionError(
            f"no trusted key in {named}: put a public Ed25519 key there (`openssl pkey -in key.pem "
            "-pubout -out key.pub`)"
        )
    return keys


def only_key(raw: bytes) -> TrustedKeys:
    """Trust one key without limits."""
    return TrustedKeys({key_id(raw): TrustedKey(raw)})


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(
        file
        for file in path.iterdir()
        if file.suffix in SUFFIXES and not file.name.startswith(".") and file.is_file()
    )


def _pem_file(file: Path) -> TrustedKeys:
    raw = _public_keys(_content(file), str(file))
    return TrustedKeys({key_id(key): TrustedKey(key) for key in raw})


def _trust_file(file: Path) -> TrustedKeys:
    try:
        content = json.loads(_content(file))
        if unknown := set(content) - {"keys", "revoked"}:
            raise ValueError(f"the unknown field {sorted(unknown)[0]!r}")
        revoked = frozenset(content.get("revoked", []))
        if not all(map(_KEY_ID.fullmatch, revoked)):
            raise ValueError("'revoked', which lists ids of keys: 64 hexadecimal digits each")
        keys = TrustedKeys({}, revoked)
        for entry in content.get("keys", []):
            for key in _entry(entry, file):
                keys = keys.joined(TrustedKeys({key_id(key.raw): key}))
        return keys
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise OptionError(f"the trust file {file} lacks or garbles {error}") from error


def _entry(entry: Mapping[str, object], file: Path) -> list[TrustedKey]:
    if unknown := set(entry) - _FIELDS:
        raise ValueError(f"the unknown field {sorted(unknown)[0]!r} of a key")
    if "file" in entry:
        beside = file.parent / str(entry["file"])
        content, source = _content(beside), str(beside)
    else:
        content, source = str(entry["pem"]).encode(), f"a key of {file}"
    start, end = (_time(entry.get(name), name) for name in ("not_before", "not_after"))
    models = entry.get("models")
    if models is not None and not (isinstance(models, list) and models):
        raise ValueError("'models', a list of names or patterns")
    groups = (tuple(map(str, models)),) if isinstance(models, list) else ()
    return [TrustedKey(raw, start, end, groups) for raw in _public_keys(content, source)]


def _time(text: object, name: str) -> datetime | None:
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(str(text))
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise ValueError(f"{name!r}, a time with its zone such as 2027-01-01T00:00:00Z")
    return time


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise OptionError(f"the key {file} cannot be read: {error.strerror}") from error


def _public_keys(content: bytes, source: str) -> list[bytes]:
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
    except ImportError as error:
        raise OptionError(
            f"signatures need cryptography ({error}): pip install 'collage[sign]'"
        ) from None
    keys = []
    try:
        for block in _PEM.findall(content):
            key = load_pem_public_key(block)
            if isinstance(key, Ed25519PublicKey):
                keys.append(key.public_bytes_raw())
    except ValueError:
        keys = []
    if not keys or len(keys) != content.count(b"-----BEGIN"):
        raise OptionError(
            f"{source} is no public Ed25519 key in PEM: write it with `openssl pkey -in key.pem -pubout "
            "-out key.pub`, where key.pem is of `openssl genpkey -algorithm ed25519`"
        )
    return keys


def _is_signed(raw: bytes, signature: bytes, text: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(raw).verify(signature, text)
    except InvalidSignature:
        return False
    return True
