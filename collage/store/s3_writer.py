"""Writes of content to S3: whole, in parts, or by a copy inside the service.

s3transfer refuses conditions, so large content is sent in parts by hand: the condition is on the last step,
and abandoned parts are removed.
"""

import hashlib
import logging
import random
import time
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from io import BytesIO
from typing import BinaryIO

from collage.errors import StoreError
from collage.store.base import Source
from collage.store.blobs import digest_of
from collage.store.s3_client import S3Client
from collage.store.s3_errors import RefusedError

log = logging.getLogger(__name__)

COPIED_BYTES = 1 << 30
"""Largest copy in one step, in bytes; S3 allows five times as much."""

Parts = list[dict[str, str | int]]
"""Number, ETag and checksum of every part."""

ABSENT = {"IfNoneMatch": "*"}
"""Condition of a write: the object does not exist."""

PARTS_AT_ONCE = 4
_PAUSE_S = 0.05
_GARBLED = (
    "BadDigest",
    "XAmzContentSHA256Mismatch",
    "XAmzContentChecksumMismatch",
    "InvalidDigest",
)


class S3Writer:
    """Writes objects through a client."""

    def __init__(self, client: S3Client) -> None:
        self._client, self._settings = client, client.settings

    def put(self, key: str, source: Source, condition: dict[str, str]) -> None:
        """Write an object; repeat after a pause if other writers are active or content was garbled.

        409 says that another conditional write is under way.

        Raises:
            RefusedError: the service refuses the write.
            StoreError: the service does not answer.
        """
        send = self._put_parts if size_of(source) > self._settings.part_bytes else self._put_whole
        for attempt in range(self._settings.attempts):
            try:
                return send(key, source, condition)
            except RefusedError as refused:
                passing = refused.status == 409 or refused.code in _GARBLED
                if not passing or attempt + 1 == self._settings.attempts:
                    raise
            time.sleep(random.uniform(0.5, 1.0) * _PAUSE_S * 2 ** min(attempt, 6))

    def copy(self, key: str, target: str, size: int) -> None:
        """Copy an object of `size` bytes inside the service. Raises RefusedError, StoreError."""
        source = {"Bucket": self._settings.bucket, "Key": self._client.full_key(key)}
        if size > COPIED_BYTES:
            try:
                return self._copy_parts(source, target, size)
            except RefusedError as refused:
                if refused.status != 501:
                    raise  # some services copy whole objects only
        full, extra = self._client.full_key(target), self._encryption()
        self._client.call("copy_object", target, Key=full, CopySource=source, **extra)

    def abort(self, full: str, upload: str) -> None:
        """Remove the parts of an unfinished upload, by its full key and id. Raises StoreError."""
        try:
            self._client.call("abort_multipart_upload", full, Key=full, UploadId=upload)
        except RefusedError as refused:
            if refused.status != 404:
                self._client.refuse("abort the upload of", full, refused)

    def _put_whole(self, key: str, source: Source, condition: dict[str, str]) -> None:
        extra = {**self._encryption(), **self._checksum(source), **condition}
        full = self._client.full_key(key)
        with _open_source(source) as body:
            self._client.call("put_object", key, Key=full, Body=body, **extra)

    def _put_parts(self, key: str, source: Source, condition: dict[str, str]) -> None:
        full = self._client.full_key(key)
        extra = self._encryption()
        if self._settings.checksum == "when_supported":
            extra["ChecksumAlgorithm"] = "SHA256"
        upload = self._client.call("create_multipart_upload", key, Key=full, **extra)["UploadId"]
        try:
            with ThreadPoolExecutor(PARTS_AT_ONCE) as pool:
                sent = pool.map(
                    lambda part: self._put_part(key, upload, source, part),
                    _parts(size_of(source), self._settings.part_bytes),
                )
                parts = list(sent)
            self._complete(key, upload, parts, condition)
        except RefusedError as refused:
            if refused.code == "NoSuchUpload" and self._client.look_at(key) is not None:
                return  # the upload is complete, and only the answer was lost
            self._try_abort(full, upload)
            raise
        except BaseException:
            self._try_abort(full, upload)
            raise

    def _complete(self, key: str, upload: str, parts: Parts, condition: dict[str, str]) -> None:
        """Complete an upload, without the condition where the service has none for this step.

        Only immutable objects are large, and their key is the digest of their content: whoever writes
        them, the content is the same.
        """
        place = {"Key": self._client.full_key(key), "UploadId": upload}
        finish = {"MultipartUpload": {"Parts": parts}, **place}
        try:
            self._client.call("complete_multipart_upload", key, **finish, **condition)
        except RefusedError as refused:
            if refused.status != 501 or condition != ABSENT:
                raise
            self._client.call("complete_multipart_upload", key, **finish)

    def _put_part(
        self, key: str, upload: str, source: Source, part: tuple[int, int, int]
    ) -> dict[str, str | int]:
        number, start, size = part
        with _open_source(source) as stream:
            stream.seek(start)
            data = stream.read(size)
        checksum = self._checksum(data)
        place = {"Key": self._client.full_key(key), "UploadId": upload, "PartNumber": number}
        answer = self._client.call("upload_part", key, **place, Body=data, **checksum)
        checksum.pop("ContentMD5", None)  # of the request alone
        return {"PartNumber": number, "ETag": answer["ETag"], **checksum}

    def _copy_parts(self, source: dict[str, str], target: str, size: int) -> None:
        full, call = self._client.full_key(target), self._client.call
        upload = call("create_multipart_upload", target, Key=full, **self._encryption())
        place = {"Key": full, "UploadId": upload["UploadId"]}
        try:
            parts = []
            for number, start, length in _parts(size, COPIED_BYTES):
                answer = call(
                    "upload_part_copy", target, **place, PartNumber=number, CopySource=source,
                    CopySourceRange=f"bytes={start}-{start + length - 1}",
                )  # fmt: skip
                parts.append({"PartNumber": number, "ETag": answer["CopyPartResult"]["ETag"]})
            call("complete_multipart_upload", target, **place, MultipartUpload={"Parts": parts})
        except BaseException:
            self._try_abort(full, upload["UploadId"])
            raise

    def _try_abort(self, full: str, upload: str) -> None:
        """Abort an upload after another error, which matters more; `collage gc` removes what stays."""
        try:
            self.abort(full, upload)
        except StoreError as error:
            log.info("an unfinished upload of %s stays: %s", full, error)

    def _checksum(self, source: Source) -> dict[str, str]:
        """Return the checksum with which the service detects changes in transit.

        Every service knows Content-MD5, and a bucket with Object Lock demands it or a newer checksum.
        """
        if self._settings.checksum != "when_supported":
            return {"ContentMD5": b64encode(_md5_of(source)).decode()}
        return {"ChecksumSHA256": b64encode(bytes.fromhex(digest_of(source))).decode()}

    def _encryption(self) -> dict[str, str | bool]:
        settings = self._settings
        if not settings.encryption:
            return {}
        parameters: dict[str, str | bool] = {"ServerSideEncryption": settings.encryption}
        if settings.encryption == "aws:kms":
            parameters["BucketKeyEnabled"] = True
        if settings.kms_key:
            parameters["SSEKMSKeyId"] = settings.kms_key
        return parameters


def size_of(source: Source) -> int:
    """Return the size of content, in bytes."""
    return len(source) if isinstance(source, bytes) else source.stat().st_size


def _md5_of(source: Source) -> bytes:
    digest = hashlib.md5(usedforsecurity=False)
    with _open_source(source) as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.digest()


def _open_source(source: Source) -> AbstractContextManager[BinaryIO]:
    return BytesIO(source) if isinstance(source, bytes) else source.open("rb")


def _parts(size: int, part_bytes: int) -> Iterator[tuple[int, int, int]]:
    """Yield number, start and size of each part; S3 allows 10,000 of them."""
    part_bytes = max(part_bytes, -(-size // 9_000))
    for number, start in enumerate(range(0, size, part_bytes), 1):
        yield number, start, min(part_bytes, size - start)
