"""Probe of an S3 service for conditional writes: concurrent writers must never overwrite each other."""

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NoReturn
from uuid import uuid4

from collage.errors import StoreError
from collage.store.base import Version
from collage.store.s3 import S3Store
from collage.store.s3_errors import NO_CONDITIONS, RefusedError
from collage.store.s3_settings import S3Settings
from collage.store.s3_writer import ABSENT

log = logging.getLogger(__name__)

RIVALS = 4
"""Concurrent writers of the probe."""


def probe_conditional_writes(store: S3Store) -> None:
    """Check the conditional writes of the service.

    Raises:
        StoreError: it ignores, refuses or mistakes conditional writes, or does not answer.
    """
    key = f"probe/{uuid4().hex}"
    try:
        _probe_create(store, key)
        _probe_swap(store, key)
    except RefusedError as refused:
        if refused.status in (400, 405, 412, 501) or refused.code == "SignatureDoesNotMatch":
            _require_plain_writes(store, key)
            _no_conditions(store, f"answers {refused.status} {refused.code} to them")
        store.client.refuse("write", key, refused)
    finally:
        _try_delete(store, key)


def _require_plain_writes(store: S3Store, key: str) -> None:
    """Raise StoreError with the service's reason if it refuses a write without conditions too.

    Services name the reason badly (`InvalidArgument`, a wrong signature), so the write is repeated without
    each optional part of the request: the one that is refused is then certain.
    """
    refused = _refusal_of_plain_write(store, key)
    if refused is None:
        return
    settings = store.client.settings
    for part, advice, changed in _simpler(settings):
        simpler = S3Store(changed)
        if _refusal_of_plain_write(simpler, key) is None:
            probe_conditional_writes(simpler)  # without them the service is of no use anyway
            raise StoreError(
                f"{store.url} ({settings.endpoint or 'AWS'}) refuses {part} with {refused.status} "
                f"{refused.code}; {advice}"
            )
    store.client.refuse("write", key, refused)


def _refusal_of_plain_write(store: S3Store, key: str) -> RefusedError | None:
    try:
        store.writer.put(key, b"no condition", {})
    except RefusedError as refused:
        return refused
    return None


def _simpler(settings: S3Settings) -> Iterator[tuple[str, str, S3Settings]]:
    """Yield optional parts of requests, the advice to leave each out, and the settings without it."""
    if settings.checksum != "when_required":
        changed = replace(settings, checksum="when_required")
        yield "checksums", "set `checksum=when_required` in the address", changed
    if settings.encryption:
        advice = "leave `encryption` out of the address, or set up the service's keys"
        yield "encryption", advice, replace(settings, encryption="", kms_key="")


def _probe_create(store: S3Store, key: str) -> None:
    def rival(number: int) -> int:
        try:
            store.writer.put(key, b"rival %d" % number, ABSENT)
            return 1
        except RefusedError as refused:
            if not refused.is_precondition:
                raise
            return 0

    with ThreadPoolExecutor(RIVALS) as pool:
        winners = sum(pool.map(rival, range(RIVALS)))
    if winners + rival(RIVALS) > 1:
        _no_conditions(store, "lets several writers create one object (If-None-Match)")


def _probe_swap(store: S3Store, key: str) -> None:
    stale = _version(store, key)
    if not store.swap(key, b"swapped", stale):
        _no_conditions(store, "refuses a right If-Match")
    if store.swap(key, b"lost update", stale):
        _no_conditions(store, "ignores If-Match")


def _version(store: S3Store, key: str) -> Version:
    content = store.read(key)
    if content is None:
        _no_conditions(store, "does not show an object that it has just accepted")
    return content.version


def _no_conditions(store: S3Store, symptom: str) -> NoReturn:
    service = store.client.settings.endpoint or "AWS"
    raise StoreError(
        f"{store.url} ({service}) has no reliable conditional writes: it {symptom}. {NO_CONDITIONS}"
    )


def _try_delete(store: S3Store, key: str) -> None:
    """Delete the probe's object; a writer without that right leaves it to `collage gc`."""
    try:
        store.delete(key)
    except StoreError as error:
        log.info("the probe's object stays: %s", error)
