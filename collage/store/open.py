"""A store by its address: a path, `file:` address, or `s3://bucket/prefix?setting=value&...`."""

from dataclasses import dataclass, fields
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from collage.errors import OptionError
from collage.store.base import Store
from collage.store.directory import DirectoryStore


@dataclass(frozen=True)
class S3Settings:
    """Where a store in S3 is and how it is spoken to.

    Credentials are no setting: boto3 finds them (environment, profile, role, web identity).

    Attributes:
        endpoint: of a service that is not AWS, e.g. `http://minio:9000`.
        addressing: `path` for most services that are not AWS, `virtual`, or `auto`.
        encryption: `AES256` or `aws:kms` on the server; "" is what the bucket does by default.
        kms_key: its id or ARN, with `aws:kms`.
        checksum: `when_required` for old services that refuse checksums of requests; Collage verifies
            SHA-256 on every read in any case.
        retries: `adaptive` slows down when the service asks for it; `standard` does not.
        attempts: of one request.
        timeout_s: seconds without a byte before a request is tried again.
        deadline_s: seconds after which a request that fails is tried no more, whatever `attempts` says.
        part_bytes: content above this is sent in parts of this size (5 MiB at least, as S3 demands).
        probe: `off` skips the check of conditional writes, for a writer that may not create `probe/`.
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
                known = ", ".join(repr(value) for value in allowed)
                raise OptionError(
                    f"S3 store: {name} is one of {known}, not {getattr(self, name)!r}"
                )
        times = min(self.timeout_s, self.deadline_s)
        if self.attempts < 1 or not times > 0 or self.part_bytes < 5 << 20:
            raise OptionError(
                "S3 store: attempts are at least 1, timeout_s and deadline_s above 0, part_bytes at least "
                "5242880"
            )
        if self.kms_key and self.encryption != "aws:kms":
            raise OptionError("S3 store: kms_key needs encryption=aws:kms")
        if "@" in urlsplit(self.endpoint).netloc:
            raise OptionError(f"S3 store: the endpoint holds credentials; {_CREDENTIALS}")


_ALLOWED = {
    "addressing": ("auto", "path", "virtual"),
    "encryption": ("", "AES256", "aws:kms"),
    "checksum": ("when_supported", "when_required"),
    "retries": ("adaptive", "standard"),
    "probe": ("on", "off"),
}
_NUMBERS = {"attempts": int, "part_bytes": int, "timeout_s": float, "deadline_s": float}
_CREDENTIALS = (
    "give them to boto3 instead (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or a role)"
)


def open_store(address: str | Path, *, writes: bool = True, must_exist: bool = False) -> Store:
    """Open the store at `address`.

    >>> open_store("s3://models/collage?endpoint=http://minio:9000&addressing=path")  # doctest: +SKIP

    Args:
        address: a folder, or `s3://bucket/prefix?...` with the settings of `S3Settings`.
        writes: whether pointers will be moved: then S3 is asked, now, whether it has conditional writes.
        must_exist: a folder that is not there is a mistake, not an empty store.

    Raises:
        OptionError: the address makes no sense, there is no such folder, or boto3 is not installed.
        StoreError: the store does not answer, or cannot keep writers apart.
    """
    text = str(address)
    scheme, separator, rest = text.partition("://")
    if isinstance(address, Path) or not separator:
        return _open_folder(Path(address).expanduser(), must_exist)
    if scheme == "file":
        return _open_folder(Path(unquote(rest)), must_exist)
    if scheme != "s3":
        raise OptionError(f"a store is a folder or s3://bucket/prefix, not {scheme}://...")
    settings = parse_s3(text)
    try:
        from collage.store.s3 import S3Store
    except ImportError as error:
        raise OptionError(
            f"a store in S3 needs boto3 ({error}): pip install 'collage[s3]'"
        ) from error
    store = S3Store(settings)
    if writes and settings.probe == "on":
        store.probe()
    return store


def _open_folder(root: Path, must_exist: bool) -> DirectoryStore:
    if root.is_file():
        raise OptionError(f"{root} is a file; a store is a folder or s3://bucket/prefix")
    if must_exist and not root.is_dir():
        raise OptionError(f"there is no folder {root}: is this the store's address?")
    return DirectoryStore(root)


def parse_s3(address: str) -> S3Settings:
    """Parse `s3://bucket/prefix?...`. Raises OptionError, which repeats no value that may be secret."""
    parts = urlsplit(address)
    if "@" in parts.netloc:
        raise OptionError(f"the store's address holds credentials; {_CREDENTIALS}")
    if not parts.netloc:
        raise OptionError("the store's address names no bucket: write s3://bucket/prefix")
    known = {field.name: field.type for field in fields(S3Settings)}
    values: dict[str, str | int | float] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in known or name in ("bucket", "prefix"):
            options = ", ".join(sorted(known.keys() - {"bucket", "prefix"}))
            raise OptionError(
                f"the store's address has an unknown setting {name!r}; known: {options}"
            )
        try:
            values[name] = _NUMBERS.get(name, str)(value)
        except ValueError:
            raise OptionError(f"the store's address: {name} is a number") from None
    return S3Settings(parts.netloc, parts.path.strip("/"), **values)  # type: ignore[arg-type]
