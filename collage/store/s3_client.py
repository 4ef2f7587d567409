"""The S3 client of one store: requests with a deadline, and errors with advice. Only here is boto3 known.

Retries of several layers multiply, so one request with all its repetitions has a deadline (`deadline_s`):
after it, and one last `timeout_s` at most, the request fails.
"""

import threading
import time
from typing import Any, NoReturn

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from urllib3.exceptions import HTTPError

from collage.errors import RetainedError, StoreError
from collage.store.base import check_key
from collage.store.s3_errors import RefusedError, advise
from collage.store.s3_settings import S3Settings

BODY_ERRORS = (BotoCoreError, HTTPError)
"""Errors of reading the body of an answer; botocore translates broken connections, and no TLS errors."""


class _DeadlineError(BotoCoreError):
    """The deadline passed before the next attempt; boto3 repeats no error of this class."""

    fmt = "no answer before the deadline"


class S3Client:
    """Requests of one store. Threads may share it; a forked process opens its own."""

    def __init__(self, settings: S3Settings) -> None:
        """Make the client; nothing is sent. Raises StoreError if boto3 refuses the settings."""
        self.settings = settings
        self.prefix = f"{settings.prefix}/" if settings.prefix else ""
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
            self._session, self._config = session, config
            self.boto = session.client("s3", endpoint_url=settings.endpoint or None, config=config)
            self._deadline = threading.local()
            self.boto.meta.events.register("before-send.s3", self._check_deadline)
        except (BotoCoreError, ValueError) as error:
            self.fail("open", "", error)

    @property
    def url(self) -> str:
        return f"s3://{self.settings.bucket}/{self.prefix}".rstrip("/")

    def full_key(self, key: str) -> str:
        """Return the key in the bucket. Raises StoreError for an invalid key."""
        return self.prefix + check_key(key)

    def call(self, operation: str, key: str, **parameters: object) -> dict[str, Any]:
        """Send one request.

        Args:
            key: key of the store, for messages.

        Raises:
            RefusedError: the service answers with an error.
            StoreError: the service does not answer.
        """
        self._deadline.at_s = time.monotonic() + self.settings.deadline_s
        try:
            answer: dict[str, Any] = getattr(self.boto, operation)(
                Bucket=self.settings.bucket, **parameters
            )
            return answer
        except ClientError as error:
            raise _refusal(error) from error
        except (BotoCoreError, ValueError) as error:
            self.fail(operation.replace("_", " "), key, error)

    def look_at(self, key: str) -> dict[str, Any] | None:
        """Return the head of an object, or None if it is absent. Raises StoreError.

        The answer to HEAD has no body, so its refusal is a mere status: GET tells the reason.
        """
        try:
            return self.call("head_object", key, Key=self.full_key(key))
        except RefusedError as refused:
            if refused.status == 404:
                return None
            self.refuse("look at", key, self._explained(key, refused))

    def sign(self, key: str, expires_s: float, **parameters: str) -> str:
        """Return a signed address for reading an object; nothing is sent. Raises StoreError."""
        place = {"Bucket": self.settings.bucket, "Key": self.full_key(key)}
        try:
            # boto3 signs addresses by the old version 2, which newer regions and KMS refuse
            signer = self._session.client(
                "s3", endpoint_url=self.settings.endpoint or None,
                config=self._config.merge(Config(signature_version="s3v4")),
            )  # fmt: skip
            signed: str = signer.generate_presigned_url(
                "get_object", Params=place | parameters, ExpiresIn=int(expires_s)
            )
            return signed
        except (BotoCoreError, ValueError) as error:
            self.fail("sign", key, error)

    def refuse(
        self, action: str, key: str, refused: RefusedError, error: Exception | None = None
    ) -> NoReturn:
        """Raise StoreError with bucket, key and advice, without the untrusted text of the service.

        Raises:
            RetainedError: a retention rule of the bucket is the reason.
            StoreError: it is another one.
        """
        place = f"s3://{self.settings.bucket}/{self.prefix}{key}"
        through = f" at {self.settings.endpoint}" if self.settings.endpoint else ""
        code, status = refused.code, refused.status
        answer = f"{status} {code}" if status and code != str(status) else code
        kind = RetainedError if refused.is_retained else StoreError
        raise kind(f"cannot {action} {place}{through}: {answer}. {advise(refused)}") from (
            error or refused
        )

    def fail(self, action: str, key: str, error: Exception) -> NoReturn:
        """Raise StoreError for an error of the client: no answer, or none of S3."""
        self.refuse(action, key, RefusedError(type(error).__name__, 0), error)

    def _explained(self, key: str, refused: RefusedError) -> RefusedError:
        if refused.code != str(refused.status):
            return refused
        try:
            self.call("get_object", key, Key=self.full_key(key), Range="bytes=0-0")["Body"].close()
        except RefusedError as explained:
            if explained.status == refused.status:
                return explained
        return refused

    def _check_deadline(self, **_: object) -> None:
        if time.monotonic() > self._deadline.at_s:
            raise _DeadlineError


def _refusal(error: ClientError) -> RefusedError:
    metadata = error.response.get("ResponseMetadata", {})
    status = metadata.get("HTTPStatusCode", 0)
    details = error.response["Error"]
    region = details.get("Region") or metadata.get("HTTPHeaders", {}).get("x-amz-bucket-region", "")
    code, text = details.get("Code", status), details.get("Message", "")
    return RefusedError(str(code), status, text=str(text), region=str(region))
