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

from collage.errors import StoreError
from collage.store.base import check_key
from collage.store.s3_errors import advise
from collage.store.s3_settings import S3Settings

BODY_ERRORS = (BotoCoreError, HTTPError)
"""Errors of reading the body of an answer; botocore translates broken connections, and no TLS errors."""


class RefusedError(Exception):
    """An answer that is no success; `code` is S3's error code, `status` the HTTP status."""

    def __init__(self, code: str, status: int) -> None:
        super().__init__(code)
        self.code = code
        self.status = status

    @property
    def is_precondition(self) -> bool:
        """Whether a condition on the object's version failed (412)."""
        return self.status == 412


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
            self.boto = session.client("s3", endpoint_url=settings.endpoint or None, config=config)
            self._deadline = threading.local()
            self.boto.meta.events.register("before-send.s3", self._check_deadline)
        except (BotoCoreError, ValueError) as error:
            self.fail("open", "", type(error).__name__, 0, error=error)

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
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            raise RefusedError(str(error.response["Error"].get("Code", status)), status) from error
        except (BotoCoreError, ValueError) as error:
            self.fail(operation.replace("_", " "), key, type(error).__name__, 0, error=error)

    def refuse(self, action: str, key: str, refused: RefusedError) -> NoReturn:
        """Raise StoreError for an answer that is no success."""
        self.fail(action, key, refused.code, refused.status, error=refused)

    def fail(self, action: str, key: str, code: str, status: int, *, error: Exception) -> NoReturn:
        """Raise StoreError with bucket, key and advice, without the untrusted text of the service."""
        place = f"s3://{self.settings.bucket}/{self.prefix}{key}"
        through = f" at {self.settings.endpoint}" if self.settings.endpoint else ""
        answer = f"{status} {code}" if status and code != str(status) else code
        raise StoreError(
            f"cannot {action} {place}{through}: {answer}. {advise(code, status)}"
        ) from error

    def _check_deadline(self, **_: object) -> None:
        if time.monotonic() > self._deadline.at_s:
            raise _DeadlineError
