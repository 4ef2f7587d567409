"""Advice for error codes of S3."""

_ADVICE = {
    "NoSuchBucket": "The bucket does not exist, or was deleted: create it, or correct the address",
    "AccessDenied": (
        "These credentials may not do it: grant s3:ListBucket on the bucket and s3:GetObject, "
        "s3:PutObject, s3:DeleteObject and s3:AbortMultipartUpload under the prefix (readers need the "
        "first two; without s3:ListBucket a missing object looks forbidden)"
    ),
    "InvalidAccessKeyId": "The access key is unknown there: check the credentials and the endpoint",
    "XAdminUserNotFound": "The access key is unknown there: check the credentials and the endpoint",
    "404": "The bucket does not exist, or was deleted: create it, or correct the address",
    "SignatureDoesNotMatch": "The secret key is wrong, or this machine's clock is: check both",
    "RequestTimeTooSkewed": "This machine's clock is wrong: set it",
    "ExpiredToken": "The session's credentials have expired: renew them",
    "NoCredentialsError": (
        "boto3 finds no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or a role"
    ),
    "PartialCredentialsError": "Half of the credentials is missing: set the key and the secret",
    "ProfileNotFound": "boto3 knows no such profile: correct `profile` in the address",
    "EndpointConnectionError": "Nothing answers at the endpoint: check `endpoint` and the network",
    "ParamValidationError": "The address is malformed: check the bucket's name and the settings",
    "InvalidBucketName": "The address is malformed: check the bucket's name",
    "_DeadlineError": (
        "The service did not answer right before the deadline: run it again later (what is stored is whole); "
        "`deadline_s` in the address makes Collage more patient"
    ),
    "SSLError": "TLS fails: check the endpoint, and its certificate (AWS_CA_BUNDLE names your own authority)",
    "UnauthorizedSSOTokenError": "The single sign-on session has expired: log in again",
    "AuthorizationHeaderMalformed": (
        "The request is signed for another region: set `region` in the address"
    ),
    "InvalidArgument": (
        "The service refuses a part of the request: `checksum=when_required` in the address leaves out the "
        "checksums of AWS's SDK, which some services refuse; then check the other settings"
    ),
    "TruncatedListing": "The service ends a listing without saying where it goes on: use another service",
    "PermanentRedirect": "The bucket is in another region: set `region` in the address",
    "BadDigest": "The content changed on its way: run it again",
    "XAmzContentSHA256Mismatch": "The content changed on its way: run it again",
    "NotImplemented": (
        "The service does not have a part of this operation: try `checksum=when_required` in the address, "
        "then another service, or a folder"
    ),
    "QuotaExceeded": "The bucket is full: free space there",
    "ConditionalRequestConflict": "Other writers got in between in every attempt: run it again",
    "PreconditionFailed": "Somebody else wrote it in between: run it again",
}
_KMS = (
    "The key of the encryption cannot be used: enable it, and allow these credentials "
    "kms:GenerateDataKey and kms:Decrypt; `kms_key` in the address names another one"
)
_BY_STATUS = {
    "403": _ADVICE["AccessDenied"],
    "301": _ADVICE["PermanentRedirect"],
    "507": _ADVICE["QuotaExceeded"],
}


def advise(code: str, status: int) -> str:
    """Return the advice for an error code and HTTP status (0: no answer)."""
    if code in _ADVICE:
        return _ADVICE[code]
    if code.startswith("KMS."):
        return _KMS
    if str(status) in _BY_STATUS:
        return _BY_STATUS[str(status)]
    if status >= 500 or status == 429 or status == 0:
        return (
            "The service is overloaded or unreachable: run it again later (what is stored is whole); "
            "`attempts` and `timeout_s` in the address make Collage more patient"
        )
    return "The service refuses the request: check the settings in the store's address"


NO_CONDITIONS = (
    "Collage needs them so that two publishers cannot overwrite each other. Use a service that has them "
    "(AWS S3, MinIO, versitygw, R2; no versioned bucket on Ceph), or a store in a folder"
)
