"""Opening an S3 store: addresses, credentials, settings, and whether the service can be trusted."""

import logging
import traceback

import pytest

from collage.errors import CollageError, OptionError, StoreError
from collage.store import open_store
from collage.store.aliases import move_alias, read_alias
from collage.store.blobs import digest_of, put_blob
from tests.store import versitygw
from tests.store.faults import BIG, DATA, again
from tests.store.proxy import FOREVER, Fault


def test_the_probe_passes_and_leaves_nothing(s3_address, bucket):
    open_store(s3_address)
    assert bucket.objects() == []


@pytest.mark.parametrize("retries", ["adaptive", "standard"])
@pytest.mark.parametrize("kind", ["lost", "reset", "timeout"])
def test_the_probe_survives_a_lost_answer(bucket, proxy, kind, retries):
    proxy.faults = [Fault(kind, "PUT")]
    open_store(bucket.address(proxy.url, retries=retries))


@pytest.mark.parametrize(
    "fault",
    [
        Fault("unconditional", "PUT", times=FOREVER),
        Fault("If-Match", "PUT", times=FOREVER),
        Fault("If-None-Match", "PUT", times=FOREVER),
        Fault("conditional", "PUT", times=FOREVER, status=501, code="NotImplemented"),
        Fault("conditional", "PUT", times=FOREVER, status=400, code="InvalidArgument"),
    ],
    ids=["ignored", "no swap", "no create", "501", "400"],
)
def test_a_service_without_conditional_writes_is_refused(bucket, proxy, fault):
    proxy.faults = [again(fault)]
    with pytest.raises(
        StoreError, match=r"no reliable conditional writes.*two publishers"
    ) as caught:
        open_store(bucket.address(proxy.url))
    assert bucket.name in str(caught.value)
    assert proxy.url in str(caught.value)
    assert bucket.objects() == []
    open_store(bucket.address(proxy.url, probe="off"))
    open_store(bucket.address(proxy.url), writes=False)


@pytest.mark.parametrize(
    ("status", "code", "advice"),
    [
        (400, "ExpiredToken", "credentials have expired: renew"),
        (400, "AuthorizationHeaderMalformed", "another region: set `region`"),
        (400, "InvalidArgument", "`checksum=when_required` in the address"),
        (400, "KMS.DisabledException", "the encryption cannot be used: enable it"),
        (501, "NotImplemented", "`checksum=when_required` in the address"),
    ],
)
def test_a_service_that_refuses_all_writes_has_another_fault(bucket, proxy, status, code, advice):
    proxy.faults = [Fault("status", "PUT", times=FOREVER, status=status, code=code)]
    with pytest.raises(StoreError, match=f"{status} {code}.*{advice}") as caught:
        open_store(bucket.address(proxy.url))
    assert "conditional" not in str(caught.value)


def test_a_service_that_compares_bare_etags_is_understood(bucket, proxy):
    proxy.faults = [Fault("bare", "PUT", times=FOREVER)]
    store = open_store(bucket.address(proxy.url))
    first, two = digest_of(b"one"), digest_of(b"two")
    assert move_alias(store, "a", first)
    assert move_alias(store, "a", two)
    assert read_alias(store, "a").previous == first


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"AWS_SECRET_ACCESS_KEY": "wrong-and-private"},
            "SignatureDoesNotMatch.*secret key is wrong",
        ),
        ({"AWS_ACCESS_KEY_ID": "somebody-private"}, "check the credentials"),
        ({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, "finds no credentials"),
    ],
)
def test_bad_credentials_are_explained_and_not_repeated(
    bucket, s3_server, monkeypatch, caplog, change, words
):
    caplog.set_level(logging.DEBUG, logger="collage")
    for name, value in change.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StoreError, match=words) as caught:
        open_store(bucket.address(s3_server.url))
    text = "".join(traceback.format_exception(caught.value)) + caplog.text
    for secret in ("private", versitygw.SECRET):
        assert secret not in str(caught.value)
        assert secret not in text


@pytest.mark.parametrize(
    "address",
    [
        "s3://KEY:PRIVATE@bucket/prefix",
        "s3://bucket/prefix?secret_key=PRIVATE",
        "s3://bucket/prefix?endpoint=http://KEY:PRIVATE@minio:9000",
        "s3:///prefix",
        "s3://bucket?attempts=many",
        "s3://bucket?attempts=0",
        "s3://bucket?part_bytes=1",
        "s3://bucket?encryption=rot13",
        "s3://bucket?kms_key=abc",
        "s3://bucket?endpoint=http://[::1:9000",
        "s3://[bucket/prefix",
        "ftp://bucket",
    ],
)
def test_bad_addresses_are_refused_and_not_repeated(address):
    with pytest.raises(OptionError) as caught:
        open_store(address)
    assert "PRIVATE" not in "".join(traceback.format_exception(caught.value, chain=True))


def test_nothing_listens(credentials):
    address = (
        "s3://models/x?endpoint=http://127.0.0.1:9&attempts=2&retries=standard&region=us-east-1"
    )
    with pytest.raises(
        CollageError, match=r"s3://models/x/.*EndpointConnectionError.*check `endpoint`"
    ):
        open_store(address)


def test_settings_reach_the_service(bucket, proxy, monkeypatch):
    """What is sent, seen in the request: encryption, bucket key, addressing, no checksum."""
    from collage.store.s3_client import S3Client

    sent = []
    send = S3Client.call
    monkeypatch.setattr(
        S3Client,
        "call",
        lambda *args, **named: (sent.append((args, named)), send(*args, **named))[1],
    )
    settings = {"encryption": "aws:kms", "kms_key": "alias/models", "checksum": "when_required"}
    store = open_store(bucket.address(proxy.url, **settings), writes=False)
    proxy.faults = [
        Fault("status", "PUT|POST", times=FOREVER, status=400, code="KMS.NotFoundException")
    ]
    for data in (DATA, BIG):
        with pytest.raises(StoreError, match=r"KMS\.NotFoundException"):
            put_blob(store, data)
    writes = [named for args, named in sent if args[1] in ("put_object", "create_multipart_upload")]
    assert len(writes) == 2
    for write in writes:
        assert (write["ServerSideEncryption"], write["SSEKMSKeyId"], write["BucketKeyEnabled"]) == (
            "aws:kms",
            "alias/models",
            True,
        )
        assert not any(name.startswith("Checksum") for name in write)


@pytest.mark.parametrize(
    ("settings", "start"),
    [
        ("addressing=path", "http://minio:9000/models/"),
        ("addressing=virtual", "http://models.minio:9000/"),
        ("addressing=path&endpoint=http://[::1]:9000", "http://[::1]:9000/models/"),
    ],
)
def test_addressing(credentials, settings, start):
    address = f"s3://models/team?endpoint=http://minio:9000&region=us-east-1&{settings}"
    client = open_store(address, writes=False).client.boto
    sent_to = client.generate_presigned_url("get_object", Params={"Bucket": "models", "Key": "k"})
    assert sent_to.startswith(start)
