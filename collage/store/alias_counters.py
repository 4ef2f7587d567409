"""The highest counter of each alias that this machine has seen: what makes an old signed record useless.

Whoever can write to a store can put a record back that was signed long ago, with a signature that is as
right as ever. So a reader that verifies remembers, for each store and alias, the counter and the bundle
of the newest record, and refuses one with a lower counter, or with the same one and another bundle. The
memory is a small file for each, on disk before the bundle is used. It is as good as the folder: a
container whose cache is new at every start begins with trust in what it finds first. Give it a volume,
or name a bundle by its digest.
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from collage.errors import BundleError, StoreError
from collage.runtime.trust import TrustedKeys
from collage.store.aliases import AliasRecord
from collage.store.atomic_folder import flush_folder, write_durably
from collage.store.records import parse_object


@dataclass(frozen=True, slots=True)
class Verification:
    """What a fetch verifies with: trusted keys, and the folder that remembers aliases' counters."""

    keys: TrustedKeys
    seen: Path


def check_newest(folder: Path, store_url: str, alias: AliasRecord) -> None:
    """Remember the alias's counter in `folder`; refuse one that is older than what was seen.

    Raises:
        BundleError: the record is older, or another one with the same counter.
        StoreError: the folder cannot be written, or what it remembers is damaged.
    """
    name = hashlib.sha256(json.dumps([store_url, alias.name]).encode()).hexdigest()
    file = folder / f"{name}.json"
    try:
        with _locked(folder):
            counter, bundle = _remembered(file)
            if (alias.counter, alias.bundle) == (counter, bundle):
                return
            if alias.counter <= counter:
                raise BundleError(
                    f"the alias {alias.name!r} in {store_url} was set back: its record has the counter "
                    f"{alias.counter}, and {counter} was seen here before. Somebody restored an old "
                    "record, which does not make it stand for an old bundle: move it with "
                    "`collage alias`, which signs a new one"
                )
            fields = {
                "store": store_url, "alias": alias.name, "counter": alias.counter,
                "bundle": alias.bundle,
            }  # fmt: skip
            fresh = file.with_suffix(".new")
            write_durably(fresh, json.dumps(fields).encode())
            fresh.replace(file)
            flush_folder(folder)
    except OSError as error:
        raise StoreError(
            f"the newest record of the alias {alias.name!r} cannot be remembered in {folder}: "
            f"{error.strerror or error}. Free space, or name another folder with --cache-dir"
        ) from error


def _remembered(file: Path) -> tuple[int, str | None]:
    try:
        fields = parse_object(file.read_bytes())
        bundle = fields["bundle"]
        return int(fields["counter"]), None if bundle is None else str(bundle)
    except FileNotFoundError:
        return 0, None
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{file}, which remembers the newest record of an alias, is damaged. Delete it when you know "
            "that the alias stands for the right bundle (`collage aliases STORE`)"
        ) from error


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
