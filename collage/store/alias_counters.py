"""Protection against replay of old signed alias records: the highest known counter of each alias.

A writer to a store can restore an old record, whose signature is still valid. So a verifying reader stores,
for each store and alias, the counter and the bundle of the newest record, and refuses a record with a lower
counter, or with the same counter and another bundle. Each is a small file, on disk before the use of the
bundle. A container with a new cache at every start trusts the first record; give it a volume, or name a
bundle by its digest.
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
    """Verification of a fetch: trusted keys, and the folder of alias counters."""

    keys: TrustedKeys
    counters_dir: Path


def check_newest(folder: Path, store_url: str, alias: AliasRecord) -> None:
    """Store the alias's counter in `folder`; refuse a record older than the stored one.

    Raises:
        BundleError: the record is older, or another one with the same counter.
        StoreError: the folder is not writable, or its counter is damaged.
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
