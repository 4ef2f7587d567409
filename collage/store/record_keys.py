"""Signatures of records that lead to executable code: writers must know the environment's key.

A writer to the store could name a shared library as the kernel of a candidate, and every measuring machine
would open it. So records that lead to code carry an HMAC-SHA256 over their fields and their place in the
store; a record copied to another environment is invalid there:

    {"kernel": ..., "blob": ..., "mac": <hex>}

The keys come from `COLLAGE_RECORD_KEY` (of a Secret), or the file `COLLAGE_RECORD_KEY_FILE`: one or several
of at least 32 characters, separated by white space. The first key signs and all are accepted. A key is
replaced in two steps: put the new one first on all machines, then remove the old one.

Without a configured key, a private key of the user is created in the local cache. So records of one user on
one machine need no configuration, and records of other writers never lead to code: their kernels are built
again, their schedules are not applied. Costs are no code. They are signed too, but an unsigned cost is a
miss only with a configured key; otherwise machines without a key could share none.

A signature proves the writer, not the content: every holder of the key may run code on all machines with
the key.
"""

import hashlib
import hmac
import json
import os
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collage.errors import OptionError, StoreError
from collage.store.atomic_folder import flush_folder, make_folders

KEY_VARIABLE = "COLLAGE_RECORD_KEY"
FILE_VARIABLE = "COLLAGE_RECORD_KEY_FILE"
MIN_KEY_LENGTH = 32
"""Least length of a key, in characters."""
MAKE_A_KEY = "openssl rand -hex 32"

_FIELD = "mac"
_CONTEXT = "collage record 1"


@dataclass(frozen=True, slots=True)
class RecordKeys:
    """Keys of records; `configured` is True for keys that machines share.

    >>> keys = RecordKeys((b"0" * 32,))
    >>> keys.accepts(keys.signed({"over": "shard"}, "kernels/1/"), "kernels/1/")
    True
    """

    keys: tuple[bytes, ...]
    configured: bool = True

    def __repr__(self) -> str:
        return f"RecordKeys({len(self.keys)} keys, configured={self.configured})"

    def signed(self, entry: Mapping[str, Any], place: str) -> dict[str, Any]:
        """Return the entry with the first key's HMAC of it and its place."""
        return {**entry, _FIELD: _code(self.keys[0], entry, place)}

    def accepts(self, entry: Mapping[str, Any], place: str) -> bool:
        """Tell whether one of the keys signed the entry for this place."""
        mac = entry.get(_FIELD)
        if not isinstance(mac, str) or not mac.isascii():
            return False
        fields = {name: value for name, value in entry.items() if name != _FIELD}
        codes = [_code(key, fields, place) for key in self.keys]
        return any(hmac.compare_digest(code, mac) for code in codes)


def configured_keys() -> RecordKeys | None:
    """Return the keys of the environment variables, or None without any.

    Raises:
        OptionError: a key is unreadable or too short; the message has no key.
    """
    text, source = os.environ.get(KEY_VARIABLE, ""), KEY_VARIABLE
    if file := os.environ.get(FILE_VARIABLE, ""):
        source = FILE_VARIABLE
        try:
            text = f"{text}\n{Path(file).read_text()}"
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no text"
            raise OptionError(f"{FILE_VARIABLE}: {file} cannot be read: {reason}") from error
    keys = tuple(key.encode() for key in text.split())
    if not keys and source == KEY_VARIABLE:
        return None
    if not keys or min(map(len, keys)) < MIN_KEY_LENGTH:
        raise OptionError(
            f"{source}: a key has at least {MIN_KEY_LENGTH} characters; make one with `{MAKE_A_KEY}`"
        )
    return RecordKeys(keys)


def record_keys(cache: Path) -> RecordKeys:
    """Return the configured keys, else the user's own key, created in the local cache on demand.

    Raises:
        OptionError: the configured keys are invalid.
        StoreError: the cache is not writable, or its key is readable by other users.
    """
    return configured_keys() or RecordKeys((_own_key(cache),), configured=False)


def _code(key: bytes, entry: Mapping[str, Any], place: str) -> str:
    text = json.dumps([_CONTEXT, place, dict(entry)], sort_keys=True)
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def _own_key(cache: Path) -> bytes:
    """Return this user's key; processes that create it at once all get the same key."""
    file = cache / f"record-key-{os.geteuid()}"
    try:
        make_folders(cache)
        if not file.exists():
            _make_key(file)
        with file.open("rb") as stream:
            status = os.fstat(stream.fileno())
            key = stream.read().strip()
    except OSError as error:
        raise StoreError(
            f"the key of your records, {file}, cannot be made or read: {error.strerror}; give "
            "permission, or choose another folder with --cache-dir"
        ) from error
    private = stat.S_ISREG(status.st_mode) and not status.st_mode & 0o077
    if not private or status.st_uid != os.geteuid() or len(key) < MIN_KEY_LENGTH:
        raise StoreError(
            f"the key of your records, {file}, is not yours alone; delete it, and a new one is made"
        )
    return key


def _make_key(file: Path) -> None:
    partial = file.with_name(f".{file.name}-{secrets.token_hex(8)}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as stream:
            stream.write(secrets.token_hex(MIN_KEY_LENGTH))
            stream.flush()
            os.fsync(stream.fileno())
        os.link(partial, file)  # the first process succeeds, and all read its key
        flush_folder(file.parent)
    except FileExistsError:
        pass
    finally:
        partial.unlink()
