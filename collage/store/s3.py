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
from collage.store.s3_client import BODY_ERRORS, S3Client
from collage.store.s3_errors import RefusedError
from collage.store.s3_settings import S3Settings
from collage.store.s3_writer import ABSENT, S3Writer, size_of

REFRESH_AGE_S = 3600.0
"""Age in seconds from which `create` writes an existing object again, to make it young."""

log = logging.getLogger(__name__)

T = TypeVar("T")


class S3Store:
    """Implements `Store` in a bucket. Threads may share it; a forked process opens its own."""

    def __init__(self, settings: S3Settings) -> None:
        """Make the client; nothing is sent. Raises StoreError if boto3 refuses the settings."""
        self.client = S3Client(settings)
        self.writer = S3Writer(self.client)
        self._prefers_bare_etags = False

    @property
    def url(self) -> str:
        return self.client.url

    def read(self, key: str) -> StoredObject | None:
        def content(answer: dict[str, Any]) -> StoredObject:
            return StoredObject(answer["Body"].read(), Version(self._field(answer, "ETag", key)))

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
                # without conditions (501) it is written all the same: the key determines the content
                if not (refused.is_precondition or refused.status == 501):
                    self.client.refuse("write", key, refused)
            entry = self.stat(key)
        is_fresh = entry is not None and entry.age_s <= REFRESH_AGE_S
        if entry is None or entry.size_bytes != size_of(source) or not is_fresh:
            try:  # a concurrent write has the same bytes
                self.writer.put(key, source, {})
            except RefusedError as refused:
                is_whole = entry is not None and entry.size_bytes == size_of(source)
                if not (refused.is_retained and is_whole):  # else nobody can delete it either
                    self.client.refuse("write", key, refused)

    def swap(self, key: str, data: bytes, version: Version | None) -> bool:
        """Replace the pointer; the version's ETag is tried in every form that services compare.

        A condition that fails although the object still has the version is the sign of another form: the
        content of a pointer has a random token, so an equal ETag is an unchanged object.
        """
        conditions = (
            [ABSENT] if version is None else [{"IfMatch": etag} for etag in self._etags(version)]
        )
        for condition in conditions:
            if self._put_if(key, data, condition):
                if etag := condition.get("IfMatch"):
                    self._prefers_bare_etags = '"' not in etag
                return True
            content = self.read(key)
            if content is not None and content.data == data:
                return True  # the answer to the write was lost
            if content is None or content.version != version:
                return False
        return False

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
        answer = self.client.look_at(key)
        if answer is None:
            return None
        size = self._field(answer, "ContentLength", key)
        return Entry(key, size, _age_s(answer, self._field(answer, "LastModified", key)))

    def entries(self, prefix: str) -> Iterator[Entry]:
        """Iterate over the objects, with the older form of listings where a page has no token."""
        operation, marker, last = "list_objects_v2", dict[str, str](), ""
        while True:
            page = self._list(operation, prefix, marker)
            items = page.get("Contents", ())
            for item in items:
                key = item["Key"].removeprefix(self.client.prefix)
                size = self._field(item, "Size", key)
                yield Entry(key, size, _age_s(page, self._field(item, "LastModified", key)))
            if not page.get("IsTruncated"):
                return
            if token := page.get("NextContinuationToken"):
                marker = {"ContinuationToken": token}
                continue
            if not items or items[-1]["Key"] <= last:  # it would go on for ever
                self.client.refuse("list", prefix, RefusedError("TruncatedListing", 200))
            last = items[-1]["Key"]
            operation, marker = "list_objects", {"Marker": last}

    def delete(self, key: str) -> None:
        try:
            self.client.call("delete_object", key, Key=self.client.full_key(key))
        except RefusedError as refused:
            if refused.code not in ("NoSuchKey", "NoSuchVersion"):
                self.client.refuse("delete", key, refused)

    def link(self, key: str, expires_s: float, media_type: str) -> str:
        return self.client.sign(key, expires_s, ResponseContentType=media_type)

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
                begun = self._field(upload, "Initiated", key)
                if not is_ours(key) or _age_s(page, begun) < older_s:
                    continue  # other programs may upload to a bucket's root
                if not dry_run:
                    self.writer.abort(upload["Key"], upload["UploadId"])
                bucket = self.client.settings.bucket
                removed.append(f"unfinished upload of s3://{bucket}/{upload['Key']}")
            following = {
                "KeyMarker": page.get("NextKeyMarker", ""),
                "UploadIdMarker": page.get("NextUploadIdMarker", ""),
            }
            if not page.get("IsTruncated") or following == marker or not following["KeyMarker"]:
                return removed  # what a service does not list is left to its lifecycle rules
            marker = following

    def _put_if(self, key: str, data: bytes, condition: dict[str, str]) -> bool:
        """Write the object; return False if the condition does not hold."""
        try:
            self.writer.put(key, data, condition)
        except RefusedError as refused:
            if refused.is_precondition or refused.code == "NoSuchKey":
                return False
            self.client.refuse("write", key, refused)
        return True

    def _etags(self, version: Version) -> list[str]:
        """Return the forms of an ETag for `If-Match`: as it came, strong, and bare.

        A proxy that compresses makes ETags weak, which never match; some services compare with the bare one.
        """
        strong = version.removeprefix("W/")
        bare = strong.strip('"')
        forms = [bare, version, strong] if self._prefers_bare_etags else [version, strong, bare]
        return list(dict.fromkeys(forms))

    def _field(self, answer: dict[str, Any], name: str, key: str) -> Any:
        """Return a field of an answer. Raises StoreError if it is missing: the answer is not of S3."""
        if name not in answer:
            self.client.refuse("read", key, RefusedError("MalformedAnswer", 200))
        return answer[name]

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
                    self.client.fail("read", key, error)
        raise AssertionError("unreachable")

    def _list(self, operation: str, prefix: str, marker: dict[str, str]) -> dict[str, Any]:
        full_prefix = self.client.prefix + prefix
        try:
            return self.client.call(operation, prefix, Prefix=full_prefix, **marker)
        except RefusedError as refused:
            self.client.refuse("list", prefix, refused)


def _age_s(answer: dict[str, Any], modified: datetime) -> float:
    """Return the seconds since `modified` by the service's clock, the source of the stamp too."""
    try:
        answered = parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
        return max(0.0, (answered - modified).total_seconds())
    except (KeyError, TypeError, ValueError):  # no date, no valid one, or none with a time zone
        return max(0.0, (datetime.now(UTC) - modified).total_seconds())
