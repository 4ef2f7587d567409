"""Settings of a store in Google Cloud Storage or Azure, and their form in an address.

gs://bucket/prefix?setting=value&...
az://container/prefix?account=name&...
"""

from dataclasses import dataclass, fields
from urllib.parse import urlsplit

from collage.errors import OptionError
from collage.store.address_settings import parse_settings

SCHEMES = ("gs", "az")


@dataclass(frozen=True)
class CloudSettings:
    """The place of a store in a cloud, and the settings of its client.

    Credentials are no setting: obstore finds them in the environment and on the machine.

    Attributes:
        scheme: `gs` for Google Cloud Storage, `az` for Azure.
        bucket: name of the bucket, or of the container.
        prefix: start of every key, without a final "/".
        account: Azure's storage account; "" is that of AZURE_STORAGE_ACCOUNT_NAME.
        endpoint: address of another service with the protocol, e.g. an emulator's.
        attempts: largest number of attempts of one request.
        timeout_s: limit without a received byte, in seconds; the request is tried again after it.
        deadline_s: limit of all attempts of one request together, in seconds.
        part_bytes: size of the parts of larger content, in bytes.
        probe: `off` skips the check of conditional writes, for a writer without the right to `probe/`.
    """

    scheme: str
    bucket: str
    prefix: str = ""
    account: str = ""
    endpoint: str = ""
    attempts: int = 10
    timeout_s: float = 60.0
    deadline_s: float = 300.0
    part_bytes: int = 32 << 20
    probe: str = "on"

    def __post_init__(self) -> None:
        shortest_s = min(self.timeout_s, self.deadline_s)
        if self.attempts < 1 or not shortest_s > 0 or self.part_bytes < 5 << 20:
            raise OptionError(
                "the store's address: attempts are at least 1, timeout_s and deadline_s above 0, part_bytes "
                "at least 5242880"
            )
        if self.probe not in ("on", "off"):
            raise OptionError(f"the store's address: probe is on or off, not {self.probe!r}")
        if self.account and self.scheme != "az":
            raise OptionError("the store's address: only az:// has an account")
        if "@" in self.endpoint:
            raise OptionError(f"the store's endpoint holds credentials; {_CREDENTIALS}")


_PLACE = ("scheme", "bucket", "prefix")
_CREDENTIALS = (
    "give them in the environment instead (GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_KEY), or "
    "use the machine's identity"
)


def parse_cloud(address: str) -> CloudSettings:
    """Parse `gs://bucket/prefix?...` or `az://container/prefix?...`.

    Raises:
        OptionError: the address is invalid; the message repeats no value.
    """
    try:
        parts = urlsplit(address)
    except ValueError:
        raise OptionError("the store's address is malformed: write gs://bucket/prefix") from None
    if "@" in parts.netloc:
        raise OptionError(f"the store's address holds credentials; {_CREDENTIALS}")
    if not parts.netloc:
        raise OptionError(
            f"the store's address names no bucket: write {parts.scheme}://bucket/prefix"
        )
    names = {field.name for field in fields(CloudSettings)} - {*_PLACE}
    values = parse_settings(parts.query, names)
    place = (parts.scheme, parts.netloc, parts.path.strip("/"))
    return CloudSettings(*place, **values)  # type: ignore[arg-type]
