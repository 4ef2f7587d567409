"""Settings of a store in S3, and their form in an address: `s3://bucket/prefix?setting=value&...`."""

from dataclasses import dataclass, fields
from urllib.parse import SplitResult, urlsplit

from collage.errors import OptionError
from collage.store.address_settings import parse_settings


@dataclass(frozen=True)
class S3Settings:
    """The place of a store in S3, and the settings of its client.

    Credentials are no setting: boto3 finds them (environment, profile, role, web identity).

    Attributes:
        endpoint: address of a service other than AWS, e.g. `http://minio:9000`.
        addressing: `path` for most services other than AWS, `virtual`, or `auto`.
        encryption: `AES256` or `aws:kms` on the server; "" is the bucket's default.
        kms_key: id or ARN of the key, with `aws:kms`.
        checksum: `when_required` for old services without checksums of requests; Collage verifies
            SHA-256 on every read in any case.
        retries: `adaptive` slows down at the service's demand; `standard` does not.
        attempts: largest number of attempts of one request.
        timeout_s: limit without a received byte, in seconds; the request is tried again after it.
        deadline_s: limit of all attempts of one request together, in seconds.
        part_bytes: size of the parts of larger content, in bytes (5 MiB at least, as S3 demands).
        probe: `off` skips the check of conditional writes, for a writer without the right to `probe/`.
    """

    bucket: str
    prefix: str = ""
    endpoint: str = ""
    region: str = ""
    profile: str = ""
    addressing: str = "auto"
    encryption: str = ""
    kms_key: str = ""
    checksum: str = "when_supported"
    retries: str = "adaptive"
    attempts: int = 10
    timeout_s: float = 60.0
    deadline_s: float = 300.0
    part_bytes: int = 32 << 20
    probe: str = "on"

    def __post_init__(self) -> None:
        for name, allowed in _ALLOWED.items():
            if getattr(self, name) not in allowed:
                choices = ", ".join(repr(value) for value in allowed)
                raise OptionError(
                    f"S3 store: {name} is one of {choices}, not {getattr(self, name)!r}"
                )
        shortest_s = min(self.timeout_s, self.deadline_s)
        if self.attempts < 1 or not shortest_s > 0 or self.part_bytes < 5 << 20:
            raise OptionError(
                "S3 store: attempts are at least 1, timeout_s and deadline_s above 0, part_bytes at least "
                "5242880"
            )
        if self.kms_key and self.encryption != "aws:kms":
            raise OptionError("S3 store: kms_key needs encryption=aws:kms")
        if "@" in _split(self.endpoint).netloc:
            raise OptionError(f"S3 store: the endpoint holds credentials; {_CREDENTIALS}")


_ALLOWED = {
    "addressing": ("auto", "path", "virtual"),
    "encryption": ("", "AES256", "aws:kms"),
    "checksum": ("when_supported", "when_required"),
    "retries": ("adaptive", "standard"),
    "probe": ("on", "off"),
}
_CREDENTIALS = (
    "give them to boto3 instead (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or a role)"
)


def parse_s3(address: str) -> S3Settings:
    """Parse `s3://bucket/prefix?...`. Raises OptionError; its message repeats no value."""
    parts = _split(address)
    if "@" in parts.netloc:
        raise OptionError(f"the store's address holds credentials; {_CREDENTIALS}")
    if not parts.netloc:
        raise OptionError("the store's address names no bucket: write s3://bucket/prefix")
    names = {field.name for field in fields(S3Settings)} - {"bucket", "prefix"}
    values = parse_settings(parts.query, names)
    return S3Settings(parts.netloc, parts.path.strip("/"), **values)  # type: ignore[arg-type]


def _split(address: str) -> SplitResult:
    try:
        return urlsplit(address)
    except ValueError:  # an IPv6 address without its second bracket
        raise OptionError(
            "the store's address is malformed: an IPv6 address stands in brackets, as in http://[::1]:9000"
        ) from None
