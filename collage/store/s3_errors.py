"""Refusals of S3, and the advice for each.

A refusal is an error code, an HTTP status and a text. The text is untrusted and is never repeated; it only
tells which right is missing (`s3:PutObject`), and whether a policy, a key or a retention rule is the reason:
services give one code for many reasons.
"""

import re

_RIGHT = re.compile(r"\b((?:s3|kms):[A-Z][A-Za-z]{2,40})\b")
_REGION = re.compile(r"[a-z0-9][a-z0-9-]{1,31}")
_RETENTION = re.compile(r"object.?lock|retention|legal.?hold|\bworm\b", re.IGNORECASE)
_RETAINED_CODES = ("ObjectLocked", "ObjectLockedByBucketPolicy", "RetentionPolicyNotMet")
_ABSENT_BUCKET = "The bucket does not exist, or was deleted: create it, or correct the address"
_UNKNOWN_KEY = "The access key is unknown there: check the credentials and the endpoint"
_TOKEN = "The session's credentials have expired: renew them"
_OTHER_REGION = "The request is signed for another region: set `region` in the address"
_ARCHIVED = (
    "The object is in an archive: restore it, and let no lifecycle rule of the bucket move objects under the "
    "prefix to archives"
)
_GARBLED = "The content changed on its way: run it again"
_PATH = "`addressing=path` helps where buckets have no host names of their own"
_MALFORMED = "The answer is not S3's: another program answers there. Check `endpoint` and the proxy"


class RefusedError(Exception):
    """An answer that is no success.

    Attributes:
        code: S3's error code, or the name of the client's error.
        status: HTTP status; 0 without an answer.
        text: the service's message; untrusted, never repeated.
        region: the bucket's region, if the answer names it.
    """

    def __init__(self, code: str, status: int, text: str = "", region: str = "") -> None:
        super().__init__(code)
        self.code = code
        self.status = status
        self.text = text
        self.region = region if _REGION.fullmatch(region) else ""

    @property
    def is_precondition(self) -> bool:
        """Whether a condition on the object's version failed (412)."""
        return self.status == 412

    @property
    def is_retained(self) -> bool:
        """Whether a retention rule of the bucket keeps the object from a change or a deletion."""
        if self.code in _RETAINED_CODES:
            return True
        asks_checksum = "content-md5" in self.text.lower()  # of writes to a bucket with Object Lock
        return (
            self.status in (400, 403, 405, 409) and not asks_checksum and self._mentions(_RETENTION)
        )

    @property
    def rights(self) -> tuple[str, ...]:
        """The missing rights that the service names."""
        return tuple(dict.fromkeys(_RIGHT.findall(self.text)))

    def _mentions(self, pattern: re.Pattern[str]) -> bool:
        return pattern.search(self.text) is not None


_ADVICE = {
    "NoSuchBucket": _ABSENT_BUCKET,
    "404": _ABSENT_BUCKET,
    "AccessDenied": (
        "These credentials may not do it: grant s3:ListBucket on the bucket and s3:GetObject, "
        "s3:PutObject, s3:DeleteObject and s3:AbortMultipartUpload under the prefix (readers need the "
        "first two; without s3:ListBucket a missing object looks forbidden)"
    ),
    "InvalidAccessKeyId": _UNKNOWN_KEY,
    "XAdminUserNotFound": _UNKNOWN_KEY,
    "InvalidSecurity": _UNKNOWN_KEY,
    "SignatureDoesNotMatch": (
        "The secret key is wrong, or this machine's clock is, or a proxy changes requests: check them"
    ),
    "RequestTimeTooSkewed": "This machine's clock is wrong: set it",
    "RequestExpired": "This machine's clock is wrong: set it",
    "ExpiredRequest": "This machine's clock is wrong: set it",
    "Unauthorized": _UNKNOWN_KEY,
    "ExpiredToken": _TOKEN,
    "ExpiredTokenException": _TOKEN,
    "TokenRefreshRequired": _TOKEN,
    "InvalidToken": (
        "The session token is not of this service: renew the credentials, or unset AWS_SESSION_TOKEN"
    ),
    "NoCredentialsError": (
        "boto3 finds no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or a role"
    ),
    "PartialCredentialsError": "Half of the credentials is missing: set the key and the secret",
    "ProfileNotFound": "boto3 knows no such profile: correct `profile` in the address",
    "EndpointConnectionError": (
        f"Nothing answers at the endpoint: check `endpoint` and the network; {_PATH}"
    ),
    "ParamValidationError": "The address is malformed: check the bucket's name and the settings",
    "InvalidBucketName": "The address is malformed: check the bucket's name",
    "_DeadlineError": (
        "The service did not answer right before the deadline: run it again later (what is stored is whole); "
        "`deadline_s` in the address makes Collage more patient"
    ),
    "SSLError": "TLS fails: check the endpoint, and its certificate (AWS_CA_BUNDLE names your own authority)",
    "ProxyConnectionError": "The proxy does not answer: check HTTPS_PROXY and NO_PROXY",
    "UnauthorizedSSOTokenError": "The single sign-on session has expired: log in again",
    "CredentialRetrievalError": "boto3 cannot get credentials: check the role and the profile",
    "AuthorizationHeaderMalformed": _OTHER_REGION,
    "IllegalLocationConstraintException": _OTHER_REGION,
    "InvalidArgument": (
        "The service refuses a part of the request: `checksum=when_required` in the address leaves out the "
        "checksums of AWS's SDK, which some services refuse; then check the other settings"
    ),
    "InvalidObjectState": _ARCHIVED,
    "TruncatedListing": "The service ends a listing without saying where it goes on: use another service",
    "MalformedAnswer": _MALFORMED,
    "ResponseParserError": _MALFORMED,
    "PermanentRedirect": "The bucket is in another region: set `region` in the address",
    "SlowDown": (
        "The service asks for fewer requests: run it again later (what is stored is whole); "
        "`retries=adaptive` and more `attempts` in the address slow Collage down"
    ),
    "BadDigest": _GARBLED,
    "XAmzContentSHA256Mismatch": _GARBLED,
    "NotImplemented": (
        "The service does not have a part of this operation: try `checksum=when_required` in the address, "
        "then another service, or a folder"
    ),
    "QuotaExceeded": "The bucket is full: free space there",
    "XMinioStorageFull": "The bucket is full: free space there",
    "ConditionalRequestConflict": "Other writers got in between in every attempt: run it again",
    "PreconditionFailed": "Somebody else wrote it in between: run it again",
}
_KMS = (
    "The key of the encryption cannot be used: enable it, and allow these credentials "
    "kms:GenerateDataKey and kms:Decrypt; `kms_key` in the address names another one"
)
_RETAINED = (
    "A retention rule of the bucket (object lock, legal hold, bucket lock) keeps the object: let the rule "
    "leave out the prefix, or at least aliases/, searches/, results/ and trash/ in it"
)
_BY_STATUS = {
    "403": _ADVICE["AccessDenied"],
    "301": _ADVICE["PermanentRedirect"],
    "507": _ADVICE["QuotaExceeded"],
}
_OF_REGIONS = (
    "AuthorizationHeaderMalformed",
    "IllegalLocationConstraintException",
    "PermanentRedirect",
)


def advise(refused: RefusedError) -> str:
    """Return the advice for a refusal."""
    code, status = refused.code, refused.status
    if code.startswith("KMS.") or any(right.startswith("kms:") for right in refused.rights):
        return _KMS
    if refused.is_retained:
        return _RETAINED
    if refused.region and (code in _OF_REGIONS or status == 301):
        return f"The bucket is in another region: set `region={refused.region}` in the address"
    if status == 403 and refused.rights and code in ("AccessDenied", "403"):
        return _missing_rights(refused)
    if code in _ADVICE:
        return _ADVICE[code]
    if str(status) in _BY_STATUS:
        return _BY_STATUS[str(status)]
    if status >= 500 or status == 429 or status == 0:
        return (
            "The service is overloaded or unreachable: run it again later (what is stored is whole); "
            "`attempts` and `timeout_s` in the address make Collage more patient"
        )
    return "The service refuses the request: check the settings in the store's address"


def _missing_rights(refused: RefusedError) -> str:
    rights = ", ".join(refused.rights)
    if "explicit deny" in refused.text:
        return (
            f"A policy denies {rights} explicitly: change that policy, of the bucket or of the user"
        )
    return f"These credentials lack {rights}: grant it for the bucket and the prefix"


NO_CONDITIONS = (
    "Collage needs them so that two publishers cannot overwrite each other. Use a service that has them "
    "(docs/store.md lists them: AWS S3, MinIO, R2, SeaweedFS, versitygw; no versioned bucket on Ceph), the "
    "protocols of Google and Azure (gs://bucket/prefix, az://container/prefix), or a store in a folder"
)
