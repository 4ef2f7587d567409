"""The store in S3, or in a service with the same protocol.

Immutable objects are put with `If-None-Match: *`, pointers with `If-Match` on the version that was read;
`collage.store.s3_probe` refuses a service without these conditions before the first write. An answer may be
lost after its write took place. The retry then fails with 412 on this writer's own data, so after a 412
the object is read back and compared.

A broken body is read again; `collage.store.blobs` verifies the bytes.
"""

import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, TypeVar

from collage.store.atomic_folder import file_explained
from collage.store.base import Entry, Source, StoredObject, Version, is_ours
from collage.store.blobs import READS
from collage.store.s3_client import BODY_ERRORS, RefusedError, S3Client
from collage.store.s3_settings import S3Settings
from collage.store.s3_writer import ABSENT, S3Writer, size_of

REFRESH_AGE_S = 3600.0
"""Age in seconds from which `create` writes an existing object again, to make it young."""

log = logging.getLogger(__name__)

T = TypeVar("T")


class S3Store:
    """Implements `Store` in a bucket. Threads may share it; a forked process opens its own.

    Attributes:
        quotes_etags: False for a service that compares `If-Match` with the bare ETag.
    """

    def __init__(self, settings: S3Settings) -> None:
        """Make the client; nothing is sent. Raises StoreError if boto3 refuses the settings."""
        self.client = S3Client(settings)
        self.writer = S3Writer(self.client)
        self.quotes_etags = True

    @property
    def url(self) -> str:
        return self.client.url

    def read(self, key: str) -> StoredObject | None:
        def content(answer: dict[str, Any]) -> StoredObject:
            return StoredObject(answer["Body"].read(), Version(answer["ETag"]))

        return self._get(key, content)

    def download(self, key: str, file: Path) -> bool:
        def save(answer: dict[str, Any]) -> bool:
            with file_explained(file):
                stream = file.open("wb")
            with stream:
                for chunk in answer["Body"].iter_chunks(1 << 20):
                    with file_explained(
                        file
                    ):  # not around the network: its errors are OSErrors too
                        stream.write(chunk)
            return True

        return self._get(key, save) or False

    def create(self, key: str, source: Source) -> None:
        entry = self.stat(key)
        if entry is None:
            try:
                self.writer.put(key, source, ABSENT)
                return
            except RefusedError as refused:
                if not refused.is_precondition:
                    self.client.refuse("write", key, refused)
            entry = self.stat(key)
        is_fresh = entry is not None and entry.age_s <= REFRESH_AGE_S
        if entry is None or entry.size_bytes != size_of(source) or not is_fresh:
            try:  # the key determines the content, so a concurrent write has the same bytes
                self.writer.put(key, source, {})
            except RefusedError as refused:
                self.client.refuse("write", key, refused)

    def swap(self, key: str, data: bytes, version: Version | None) -> bool:
        condition = ABSENT if version is None else {"IfMatch": self._etag(version)}
        try:
            self.writer.put(key, data, condition)
        except RefusedError as refused:
            if refused.is_precondition or refused.code == "NoSuchKey":
                content = self.read(key)
                return content is not None and content.data == data
            self.client.refuse("write", key, refused)
        return True

    def copy(self, key: str, target: str) -> bool:
        entry = self.stat(key)
        if entry is None:
            return False
        try:
            self.writer.copy(key, target, entry.size_bytes)
        except RefusedError as refused:
            if refused.code in ("NoSuchKey", "404"):
                return False
            self.client.refuse("copy", key, refused)
        return True

    def stat(self, key: str) -> Entry | None:
        try:
            answer = self.client.call("head_object", key, Key=self.client.full_key(key))
        except RefusedError as refused:
            if refused.status == 404:
                return None
            self.client.refuse("look at", key, refused)
        return Entry(key, answer["ContentLength"], _age_s(answer, answer["LastModified"]))

    def entries(self, prefix: str) -> Iterator[Entry]:
        marker: dict[str, str] = {}
        while True:
            page = self._list(prefix, marker)
            items = page.get("Contents", ())
            for item in items:
                key = item["Key"].removeprefix(self.client.prefix)
                yield Entry(key, item["Size"], _age_s(page, item["LastModified"]))
            if not page.get("IsTruncated"):
                return
            if token := page.get("NextContinuationToken"):
                marker = {"ContinuationToken": token}
            elif items:  # some services have no tokens
                marker = {"StartAfter": items[-1]["Key"]}
            else:
                self.client.refuse("list", prefix, RefusedError("TruncatedListing", 200))

    def delete(self, key: str) -> None:
        try:
            self.client.call("delete_object", key, Key=self.client.full_key(key))
        except RefusedError as refused:
            self.client.refuse("delete", key, refused)

    def remove_partial(self, older_s: float, dry_run: bool) -> list[str]:
        removed: list[str] = []
        marker: dict[str, str] = {}
        while True:
            try:
                page = self.client.call(
                    "list_multipart_uploads", "", Prefix=self.client.prefix, **marker
                )
            except RefusedError as refused:
                if refused.status in (405, 501):
                    log.warning("%s: the service does not list unfinished uploads", self.url)
                    return removed
                self.client.refuse("list the uploads of", "", refused)
            for upload in page.get("Uploads", ()):
                key = upload["Key"].removeprefix(self.client.prefix)
                if not is_ours(key) or _age_s(page, upload["Initiated"]) < older_s:
                    continue  # other programs may upload to a bucket's root
                if not dry_run:
                    self.writer.abort(upload["Key"], upload["UploadId"])
                bucket = self.client.settings.bucket
                removed.append(f"unfinished upload of s3://{bucket}/{upload['Key']}")
            if not page.get("IsTruncated"):
                return removed
            marker = {
                "KeyMarker": page["NextKeyMarker"],
                "UploadIdMarker": page["NextUploadIdMarker"],
            }

    def _etag(self, version: Version) -> str:
        return version if self.quotes_etags else version.strip('"')

    def _get(self, key: str, use: Callable[[dict[str, Any]], T]) -> T | None:
        """Return `use` of the object's answer, repeated from the start if the body breaks off."""
        for attempt in range(READS):
            try:
                answer = self.client.call("get_object", key, Key=self.client.full_key(key))
            except RefusedError as refused:
                if refused.code == "NoSuchKey":
                    return None
                self.client.refuse("read", key, refused)
            try:
                return use(answer)
            except BODY_ERRORS as error:
                if attempt + 1 == READS:
                    self.client.fail("read", key, type(error).__name__, 0, error=error)
        raise AssertionError("unreachable")

    def _list(self, prefix: str, marker: dict[str, str]) -> dict[str, Any]:
        try:
            return self.client.call(
                "list_objects_v2", prefix, Prefix=self.client.prefix + prefix, **marker
            )
        except RefusedError as refused:
            self.client.refuse("list", prefix, refused)


def _age_s(answer: dict[str, Any], modified: datetime) -> float:
    """Return the seconds since `modified` by the service's clock, the source of the stamp too."""
    date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
    answered = parsedate_to_datetime(date) if date else datetime.now(UTC)
    return max(0.0, (answered - modified).total_seconds())
