"""What S3 services do differently, as data for `tests.store.dialect_server`.

The entries follow the services' documentation and what their users report; none is a measurement. Real code
is in other tests (versitygw). `docs/store.md` has the same table for people.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Dialect:
    """The deviations of one service from AWS.

    Attributes:
        create: `If-None-Match: *` of PUT: `honoured`, `ignored`, or the status of a refusal.
        swap: `If-Match` of PUT: `quoted`, `bare` (only an ETag without quotes matches), `ignored`, `501`.
        complete: `If-None-Match` of the end of a multipart upload: `honoured`, `ignored`, `501`.
        checksum: `x-amz-checksum-*` and `x-amz-sdk-*`: `verified`, `ignored`, or the code of a refusal.
        region: the only region of signatures; "" takes any.
        weak: True for a proxy in front that makes the ETags of answers weak.
        tokens: False for listings that end pages without a token, and know only the older form.
        uploads: False for 501 to a listing of unfinished uploads.
        part_copy: False for 501 to copies of parts.
        absent_delete: status of the deletion of what is not there.
        lock: True for a bucket with Object Lock and default retention: writes need a digest.
        retained: prefixes of keys that a retention rule keeps; changes and deletions are refused.
        settings: settings of the store's address with which Collage works there.
    """

    name: str
    create: str = "honoured"
    swap: str = "quoted"
    complete: str = "honoured"
    checksum: str = "verified"
    region: str = ""
    weak: bool = False
    tokens: bool = True
    uploads: bool = True
    part_copy: bool = True
    absent_delete: int = 204
    lock: bool = False
    retained: tuple[str, ...] = ()
    settings: str = ""


SUITABLE = (
    Dialect("aws"),
    Dialect("aws-region", region="eu-west-1", settings="region=eu-west-1"),
    Dialect("aws-lock", lock=True),
    Dialect("aws-lock-md5", lock=True, settings="checksum=when_required"),
    Dialect("minio", settings="addressing=path"),
    Dialect("ceph", swap="bare", complete="ignored"),
    Dialect("r2", region="auto", settings="region=auto"),
    Dialect("seaweedfs", complete="ignored", checksum="ignored"),
    Dialect("proxied", weak=True),
    Dialect("old-gateway", tokens=False, uploads=False, part_copy=False, absent_delete=404,
            complete="501", checksum="InvalidArgument", settings="checksum=when_required"),
)  # fmt: skip
"""Services with conditional writes."""

UNSUITABLE = (
    Dialect("gcs", create="ignored", swap="ignored", complete="ignored", part_copy=False,
            checksum="SignatureDoesNotMatch", absent_delete=404, settings="checksum=when_required"),
    Dialect("backblaze", create="501", swap="501", complete="501", checksum="InvalidArgument",
            settings="checksum=when_required"),
    Dialect("spaces", create="ignored", swap="ignored", complete="ignored",
            checksum="InvalidArgument", settings="checksum=when_required"),
    Dialect("garage", create="ignored", swap="ignored", complete="ignored", region="garage",
            settings="region=garage"),
    Dialect("seaweedfs-old", create="ignored", swap="ignored", complete="ignored",
            checksum="ignored"),
)  # fmt: skip
"""Services without conditional writes: readers may use them, writers are refused."""
