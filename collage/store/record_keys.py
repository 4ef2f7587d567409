"""Who may write records that lead to code: those that know the environment's key.

Whoever may write to a store could name a shared library as the kernel of a candidate, and every machine
that measures would open it. So lines that lead to code carry an HMAC-SHA256 over their fields and the place
that they are for, which a line of one environment would not have in another:

    {"kernel": ..., "blob": ..., "mac": <hex>}

The keys come from `COLLAGE_RECORD_KEY` (of a Secret), or the file `COLLAGE_RECORD_KEY_FILE`: one or several
of at least 32 characters, apart by white space. The first signs and all are accepted, so a key is
exchanged in two steps: add the new one first on all machines, then drop the old one.

Where none is configured, a key of the user's own is made in the local cache, readable by nobody else. So
one user's records on one machine need no configuration, and what others wrote is never code here: their
kernels are built again, their schedules are not applied. Costs are no code. They are signed too, and only
a configured key makes an unsigned one a miss, for otherwise machines could share none without a key.

This says who wrote a record, not that it is right: whoever knows the key may run code on all machines
that know it.
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
SHORTEST = 32
"""Characters of a key."""
MAKE_A_KEY = "openssl rand -hex 32"

_FIELD = "mac"
_CONTEXT = "collage record 1"


@dataclass(frozen=True, slots=True)
class RecordKeys:
    """Keys of records; `configured` says that machines share them.

    >>> keys = RecordKeys((b"0" * 32,))
    >>> keys.accepts(keys.signed({"over": "shard"}, "kernels/1/"), "kernels/1/")
    True
    """

    keys: tuple[bytes, ...]
    configured: bool = True

    def __repr__(self) -> str:
        return f"RecordKeys({len(self.keys)} keys, configured={self.configured})"

    def signed(self, entry: Mapping[str, Any], place: str) -> dict[str, Any]:
        """Return the entry with the code that the first key makes of it and its place."""
        return {**entry, _FIELD: _code(self.keys[0], entry, place)}

    def accepts(self, entry: Mapping[str, Any], place: str) -> bool:
        """Tell whether one of the keys signed the entry for this place."""
        found = entry.get(_FIELD)
        if not isinstance(found, str) or not found.isascii():
            return False
        fields = {name: value for name, value in entry.items() if name != _FIELD}
        codes = [_code(key, fields, place) for key in self.keys]
        return any(hmac.compare_digest(code, found) for code in codes)


def configured_keys() -> RecordKeys | None:
    """Return the keys that the environment names, None where it names none.

    Raises:
        OptionError: they cannot be read, or one is too short; says no key.
    """
    text, source = os.environ.get(KEY_VARIABLE, ""), KEY_VARIABLE
    if file := os.environ.get(FILE_VARIABLE, ""):
        source = FILE_VARIABLE
        try:
            text = f"{text}\n{Path(file).read_text()}"
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text"
            raise OptionError(f"{FILE_VARIABLE}: {file} cannot be read: {why}") from error
    found = tuple(one.encode() for one in text.split())
    if not found and source == KEY_VARIABLE:
        return None
    if not found or min(map(len, found)) < SHORTEST:
        raise OptionError(
            f"{source}: a key has at least {SHORTEST} characters; make one with `{MAKE_A_KEY}`"
        )
    return RecordKeys(found)


def record_keys(cache: Path) -> RecordKeys:
    """Return the configured keys, else the user's own, kept in the local cache and made where it is missing.

    Raises:
        OptionError: the configured keys are not right.
        StoreError: the cache cannot be written, or the key there is readable by others.
    """
    return configured_keys() or RecordKeys((_own_key(cache),), configured=False)


def _code(key: bytes, entry: Mapping[str, Any], place: str) -> str:
    text = json.dumps([_CONTEXT, place, dict(entry)], sort_keys=True)
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def _own_key(cache: Path) -> bytes:
    """Return this user's key; several processes that make it at once get one key."""
    file = cache / f"record-key-{os.geteuid()}"
    try:
        make_folders(cache)
        if not file.exists():
            _make_key(file)
        with file.open("rb") as stream:
            found = os.fstat(stream.fileno())
            key = stream.read().strip()
    except OSError as error:
        raise StoreError(
            f"the key of your records, {file}, cannot be made or read: {error.strerror}; give "
            "permission, or choose another folder with --cache-dir"
        ) from error
    private = stat.S_ISREG(found.st_mode) and not found.st_mode & 0o077
    if not private or found.st_uid != os.geteuid() or len(key) < SHORTEST:
        raise StoreError(
            f"the key of your records, {file}, is not yours alone; delete it, and a new one is made"
        )
    return key


def _make_key(file: Path) -> None:
    partial = file.with_name(f".{file.name}-{secrets.token_hex(8)}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as stream:
            stream.write(secrets.token_hex(SHORTEST))
            stream.flush()
            os.fsync(stream.fileno())
        os.link(partial, file)  # the first of several wins, and all read its key
        flush_folder(file.parent)
    except FileExistsError:
        pass
    finally:
        partial.unlink()
