"""The store in S3, or in a service that speaks like it. The one module that knows boto3.

Immutable objects are put with `If-None-Match: *`, pointers with `If-Match` on the version that was
read; a service that does not honour these is refused by `probe` before anything is written. Three
things are easy to get wrong, and are decided here:

* An answer may be lost after the write took place. The retry then fails with 412 on this writer's own
  data, so 412 is never believed as it stands: the object is read back and compared.
* 409 says that another conditional write is under way: it is tried again after a pause.
* s3transfer refuses conditions, so big content is sent in parts by hand; the condition is on the last
  step, and parts that nobody will use are removed.

Retries of several layers multiply, so one request with all its repetitions has a deadline (`deadline_s`):
a service that does not answer is given up then, after one last `timeout_s` at most.

Bodies that break off are read again; whether the bytes are right is for `collage.store.blobs` to say.
"""

import random
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TypeVar
from uuid import uuid4

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from collage.errors import StoreError
from collage.store.atomic_folder import file_explained
from collage.store.base import Entry, Found, Source, Version, check_key, is_ours
from collage.store.blobs import READS, digest_of
from collage.store.open import S3Settings
from collage.store.s3_errors import NO_CONDITIONS, advise

YOUNG_S = 3600.0
"""An object that is younger is not written again for its age's sake."""

COPIED_BYTES = 1 << 30
"""Copied by the service in one step; S3 takes five times as much."""

RIVALS = 4
SENDERS = 4
_PAUSE_S = 0.05
_ABSENT = {"IfNoneMatch": "*"}
_GARBLED = (
    "BadDigest",
    "XAmzContentSHA256Mismatch",
    "XAmzContentChecksumMismatch",
    "InvalidDigest",
)

T = TypeVar("T")


class _Refused(Exception):
    """An answer that is no success; `code` is S3's word for it."""

    def __init__(self, code: str, status: int) -> None:
        super().__init__(code)
        self.code = code
        self.status = status


class _DeadlineError(BotoCoreError):
    """boto3 was about to try again after the deadline; it repeats other errors than this one."""

    fmt = "no answer before the deadline"


class S3Store:
    """Implements `Store` in a bucket. Threads may share it; a forked process opens its own."""

    def __init__(self, settings: S3Settings) -> None:
        """Make the client; nothing is sent. Raises StoreError when boto3 refuses the settings."""
        self._settings = settings
        self._prefix = f"{settings.prefix}/" if settings.prefix else ""
        self._quoted = True
        config = Config(
            retries={"mode": settings.retries, "total_max_attempts": settings.attempts},
            s3={"addressing_style": settings.addressing},
            connect_timeout=min(10.0, settings.timeout_s),
            read_timeout=settings.timeout_s,
            request_checksum_calculation=settings.checksum,
            response_checksum_validation=settings.checksum,
            max_pool_connections=32,
            tcp_keepalive=True,
        )
        try:
            session = boto3.Session(
                profile_name=settings.profile or None, region_name=settings.region or None
            )
            self._client = session.client(
                "s3", endpoint_url=settings.endpoint or None, config=config
            )
            self._until = threading.local()
            self._client.meta.events.register("before-send.s3", self._check_deadline)
        except (BotoCoreError, ValueError) as error:
            self._fail("open", "", type(error).__name__, 0, error)

    @property
    def url(self) -> str:
        return f"s3://{self._settings.bucket}/{self._prefix}".rstrip("/")

    def read(self, key: str) -> Found | None:
        def whole(answer: dict[str, Any]) -> Found:
            return Found(answer["Body"].read(), Version(answer["ETag"]))

        return self._get(key, whole)

    def download(self, key: str, file: Path) -> bool:
        def save(answer: dict[str, Any]) -> bool:
            with file_explained(file):
                stream = file.open("wb")
            with stream:
                for chunk in answer["Body"].iter_chunks(1 << 20):
                    with file_explained(
                        file
                    ):  # not around the network, whose errors are OSErrors too
                        stream.write(chunk)
            return True

        return self._get(key, save) or False

    def create(self, key: str, source: Source) -> None:
        found = self.stat(key)
        size = _size(source)
        if found is None:
            try:
                self._put(key, source, _ABSENT)
                return
            except _Refused as refused:
                if not _lost(refused):
                    self._fail("write", key, refused.code, refused.status, refused)
            found = self.stat(key)
        if found is None or found.size_bytes != size or found.age_s > YOUNG_S:
            try:  # the key promises the content, so writing it again is right whoever else does
                self._put(key, source, {})
            except _Refused as refused:
                self._fail("write", key, refused.code, refused.status, refused)

    def swap(self, key: str, data: bytes, version: Version | None) -> bool:
        condition = _ABSENT if version is None else {"IfMatch": self._etag(version)}
        try:
            self._put(key, data, condition)
        except _Refused as refused:
            if _lost(refused) or refused.code == "NoSuchKey":
                found = self.read(key)
                return found is not None and found.data == data
            self._fail("write", key, refused.code, refused.status, refused)
        return True

    def copy(self, key: str, other: str) -> bool:
        found = self.stat(key)
        if found is None:
            return False
        source = {"Bucket": self._settings.bucket, "Key": self._full(key)}
        try:
            if found.size_bytes > COPIED_BYTES:
                self._copy_parts(source, other, found.size_bytes)
            else:
                full, extra = self._full(other), self._encryption()
                self._call("copy_object", other, Key=full, CopySource=source, **extra)
        except _Refused as refused:
            if refused.code in ("NoSuchKey", "404"):
                return False
            self._fail("copy", key, refused.code, refused.status, refused)
        return True

    def stat(self, key: str) -> Entry | None:
        try:
            answer = self._call("head_object", key, Key=self._full(key))
        except _Refused as refused:
            if refused.status == 404:
                return None
            self._fail("look at", key, refused.code, refused.status, refused)
        return Entry(key, answer["ContentLength"], _age_s(answer, answer["LastModified"]))

    def entries(self, prefix: str) -> Iterator[Entry]:
        more: dict[str, str] = {}
        while True:
            page = self._list("list_objects_v2", prefix, **more)
            for item in page.get("Contents", ()):
                key = item["Key"].removeprefix(self._prefix)
                yield Entry(key, item["Size"], _age_s(page, item["LastModified"]))
            if not page.get("IsTruncated"):
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def delete(self, key: str) -> None:
        try:
            self._call("delete_object", key, Key=self._full(key))
        except _Refused as refused:
            self._fail("delete", key, refused.code, refused.status, refused)

    def remove_partial(self, older_s: float, dry_run: bool) -> list[str]:
        removed = []
        more: dict[str, str] = {}
        while True:
            page = self._list("list_multipart_uploads", "", **more)
            for upload in page.get("Uploads", ()):
                key = upload["Key"].removeprefix(self._prefix)
                if not is_ours(key) or _age_s(page, upload["Initiated"]) < older_s:
                    continue  # at a bucket's root, others upload too
                if not dry_run:
                    self._abort(upload["Key"], upload["UploadId"])
                removed.append(f"unfinished upload of s3://{self._settings.bucket}/{upload['Key']}")
            if not page.get("IsTruncated"):
                return removed
            more = {
                "KeyMarker": page["NextKeyMarker"],
                "UploadIdMarker": page["NextUploadIdMarker"],
            }

    def probe(self) -> None:
        """Find out whether the service keeps writers apart.

        Raises:
            StoreError: it ignores, refuses or mistakes conditional writes, or does not answer.
        """
        key = f"probe/{uuid4().hex}"
        try:
            self._probe_create(key)
            self._probe_swap(key)
        except _Refused as refused:
            if refused.status in (400, 405, 412, 501):
                self._no_conditions(f"answers {refused.status} {refused.code} to them")
            self._fail("write", key, refused.code, refused.status, refused)
        finally:
            self._try_delete(key)

    def _probe_create(self, key: str) -> None:
        def rival(number: int) -> int:
            try:
                self._put(key, b"rival %d" % number, _ABSENT)
                return 1
            except _Refused as refused:
                if not _lost(refused):
                    raise
                return 0

        with ThreadPoolExecutor(RIVALS) as pool:
            winners = sum(pool.map(rival, range(RIVALS)))
        if winners + rival(RIVALS) > 1:
            self._no_conditions("lets several writers create one object (If-None-Match)")

    def _probe_swap(self, key: str) -> None:
        stale = self._version(key)
        if not self.swap(key, b"swapped", stale):
            self._quoted = False  # some services compare with the bare ETag
            if not self.swap(key, b"swapped", stale):
                self._no_conditions("refuses a right If-Match")
        if self.swap(key, b"lost update", stale):
            self._no_conditions("ignores If-Match")

    def _version(self, key: str) -> Version:
        found = self.read(key)
        if found is None:
            self._no_conditions("does not show an object that it has just accepted")
        return found.version

    def _no_conditions(self, how: str) -> NoReturn:
        raise StoreError(
            f"{self.url} ({self._settings.endpoint or 'AWS'}) has no reliable conditional writes: it "
            f"{how}. {NO_CONDITIONS}"
        )

    def _try_delete(self, key: str) -> None:
        try:
            self.delete(key)
        except StoreError:
            return  # this writer may not delete, or the service is gone; `collage gc` removes it

    def _etag(self, version: Version) -> str:
        return version if self._quoted else version.strip('"')

    def _full(self, key: str) -> str:
        return self._prefix + check_key(key)

    def _get(self, key: str, use: Callable[[dict[str, Any]], T]) -> T | None:
        """Use the object's answer; again from the start where the body breaks off."""
        for attempt in range(READS):
            try:
                answer = self._call("get_object", key, Key=self._full(key))
            except _Refused as refused:
                if refused.code == "NoSuchKey":
                    return None
                self._fail("read", key, refused.code, refused.status, refused)
            try:
                return use(answer)
            except BotoCoreError as error:
                if attempt + 1 == READS:
                    self._fail("read", key, type(error).__name__, 0, error)
        raise AssertionError("unreachable")

    def _put(self, key: str, source: Source, condition: dict[str, str]) -> None:
        """Write; again after a pause where others write at this moment, or content was garbled."""
        send = self._put_parts if _size(source) > self._settings.part_bytes else self._put_whole
        for attempt in range(self._settings.attempts):
            try:
                return send(key, source, condition)
            except _Refused as refused:
                passing = refused.status == 409 or refused.code in _GARBLED
                if not passing or attempt + 1 == self._settings.attempts:
                    raise
            time.sleep(random.uniform(0.5, 1.0) * _PAUSE_S * 2 ** min(attempt, 6))

    def _put_whole(self, key: str, source: Source, condition: dict[str, str]) -> None:
        extra = {**self._encryption(), **self._checksum(source), **condition}
        with _opened(source) as body:
            self._call("put_object", key, Key=self._full(key), Body=body, **extra)

    def _put_parts(self, key: str, source: Source, condition: dict[str, str]) -> None:
        full = self._full(key)
        extra = self._encryption()
        if self._settings.checksum == "when_supported":
            extra["ChecksumAlgorithm"] = "SHA256"
        upload = self._call("create_multipart_upload", key, Key=full, **extra)["UploadId"]
        try:
            with ThreadPoolExecutor(SENDERS) as pool:
                send = pool.map(
                    lambda part: self._put_part(key, upload, source, part),
                    _parts(_size(source), self._settings.part_bytes),
                )
                parts = list(send)
            self._call(
                "complete_multipart_upload", key, Key=full, UploadId=upload,
                MultipartUpload={"Parts": parts}, **condition,
            )  # fmt: skip
        except _Refused as refused:
            if refused.code == "NoSuchUpload" and self.stat(key) is not None:
                return  # the answer to a complete that took place was lost
            self._try_abort(full, upload)
            raise
        except BaseException:
            self._try_abort(full, upload)
            raise

    def _put_part(
        self, key: str, upload: str, source: Source, part: tuple[int, int, int]
    ) -> dict[str, str | int]:
        number, start, size = part
        with _opened(source) as stream:
            stream.seek(start)
            data = stream.read(size)
        checksum = self._checksum(data)
        where = {"Key": self._full(key), "UploadId": upload, "PartNumber": number}
        answer = self._call("upload_part", key, **where, Body=data, **checksum)
        return {"PartNumber": number, "ETag": answer["ETag"], **checksum}

    def _copy_parts(self, source: dict[str, str], other: str, size: int) -> None:
        full = self._full(other)
        upload = self._call("create_multipart_upload", other, Key=full, **self._encryption())
        where = {"Key": full, "UploadId": upload["UploadId"]}
        try:
            parts = []
            for number, start, length in _parts(size, COPIED_BYTES):
                answer = self._call(
                    "upload_part_copy", other, **where, PartNumber=number, CopySource=source,
                    CopySourceRange=f"bytes={start}-{start + length - 1}",
                )  # fmt: skip
                parts.append({"PartNumber": number, "ETag": answer["CopyPartResult"]["ETag"]})
            done = {"Parts": parts}
            self._call("complete_multipart_upload", other, **where, MultipartUpload=done)
        except BaseException:
            self._try_abort(full, upload["UploadId"])
            raise

    def _abort(self, full: str, upload: str) -> None:
        try:
            self._call("abort_multipart_upload", full, Key=full, UploadId=upload)
        except _Refused as refused:
            if refused.status != 404:
                self._fail("abort the upload of", full, refused.code, refused.status, refused)

    def _try_abort(self, full: str, upload: str) -> None:
        try:
            self._abort(full, upload)
        except StoreError:
            return  # the error that led here matters more; `collage gc` removes the parts

    def _checksum(self, source: Source) -> dict[str, str]:
        """What lets the service find out that content changed on its way."""
        if self._settings.checksum != "when_supported":
            return {}
        return {"ChecksumSHA256": b64encode(bytes.fromhex(digest_of(source))).decode()}

    def _encryption(self) -> dict[str, str | bool]:
        settings = self._settings
        if not settings.encryption:
            return {}
        found: dict[str, str | bool] = {"ServerSideEncryption": settings.encryption}
        if settings.encryption == "aws:kms":
            found["BucketKeyEnabled"] = True
        if settings.kms_key:
            found["SSEKMSKeyId"] = settings.kms_key
        return found

    def _list(self, operation: str, prefix: str, **more: str) -> dict[str, Any]:
        try:
            return self._call(operation, prefix, Prefix=self._prefix + prefix, **more)
        except _Refused as refused:
            self._fail("list", prefix, refused.code, refused.status, refused)

    def _check_deadline(self, **_: object) -> None:
        if time.monotonic() > self._until.at:
            raise _DeadlineError

    def _call(self, operation: str, key: str, **parameters: object) -> dict[str, Any]:
        self._until.at = time.monotonic() + self._settings.deadline_s
        try:
            return getattr(self._client, operation)(Bucket=self._settings.bucket, **parameters)
        except ClientError as error:
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            raise _Refused(str(error.response["Error"].get("Code", status)), status) from error
        except (BotoCoreError, ValueError) as error:
            self._fail(operation.replace("_", " "), key, type(error).__name__, 0, error)

    def _fail(self, action: str, key: str, code: str, status: int, error: Exception) -> NoReturn:
        """Raise StoreError with bucket, key and advice; the service's own text may hold anything."""
        where = f"s3://{self._settings.bucket}/{self._prefix}{key}"
        through = f" at {self._settings.endpoint}" if self._settings.endpoint else ""
        answer = f"{status} {code}" if status and code != str(status) else code
        raise StoreError(
            f"cannot {action} {where}{through}: {answer}. {advise(code, status)}"
        ) from error


def _lost(refused: _Refused) -> bool:
    return refused.status == 412


def _size(source: Source) -> int:
    return len(source) if isinstance(source, bytes) else source.stat().st_size


def _opened(source: Source) -> AbstractContextManager[BinaryIO]:
    return BytesIO(source) if isinstance(source, bytes) else source.open("rb")


def _parts(size: int, part_bytes: int) -> Iterator[tuple[int, int, int]]:
    """Number, start and size of each part; S3 takes 10,000 of them."""
    part_bytes = max(part_bytes, -(-size // 9_000))
    for number, start in enumerate(range(0, size, part_bytes), 1):
        yield number, start, min(part_bytes, size - start)


def _age_s(answer: dict[str, Any], modified: datetime) -> float:
    """Seconds since `modified` by the service's clock, which made the stamp too."""
    date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
    now = parsedate_to_datetime(date) if date else datetime.now(UTC)
    return max(0.0, (now - modified).total_seconds())
