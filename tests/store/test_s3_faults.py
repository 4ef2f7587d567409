"""A real S3 server behind a proxy that fails: nothing wrong is served; errors say where and what to do."""

import logging
import random
import traceback

import pytest

from collage.errors import CollageError, DamagedError, OptionError, StoreError
from collage.store import open_store
from collage.store.aliases import move_alias, read_alias
from collage.store.blobs import blob_key, digest_of, fetch_blob, get_blob, put_blob
from collage.store.bundles import fetch_bundle, list_bundles, publish_bundle
from tests.store import versitygw
from tests.store.proxy import FOREVER, Fault

DATA = bytes(range(256)) * 1000
BIG = DATA * 50
DIGEST = digest_of(DATA)
KEY = f"team/collage/{blob_key(DIGEST)}"


@pytest.fixture
def direct(s3_address):
    """The same store without the proxy."""
    return open_store(s3_address, writes=False)


@pytest.fixture
def faulty(bucket, proxy):
    return open_store(bucket.address(proxy.url), writes=False)


PASSING = [
    Fault("timeout"),
    Fault("reset"),
    Fault("slow"),
    Fault("truncate"),
    Fault("flip"),
    Fault("status", times=2, status=500, code="InternalError"),
    Fault("status", times=2, status=503, code="SlowDown"),
]


def again(fault, **changes):
    """A fault of its own for each test: faults count."""
    return Fault(**{**vars(fault), "hit": 0, **changes})


def named(fault):
    return f"{fault.kind}{fault.status or ''}"


@pytest.mark.parametrize("checksum", ["when_supported", "when_required"])
@pytest.mark.parametrize("fault", PASSING, ids=named)
def test_a_read_survives_a_passing_fault(bucket, proxy, direct, fault, checksum, tmp_path):
    put_blob(direct, DATA)
    store = open_store(bucket.address(proxy.url, checksum=checksum), writes=False)
    proxy.faults = [again(fault, path=KEY)]
    assert get_blob(store, DIGEST) == DATA
    assert proxy.faults[0].hit == fault.times
    proxy.faults = [again(fault, path=KEY)]
    fetch_blob(store, DIGEST, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == DATA
    assert proxy.faults[0].hit == fault.times


LASTING = [
    (Fault("timeout"), "ReadTimeoutError.*run it again later.*timeout_s"),
    (Fault("reset"), "run it again later"),
    (Fault("truncate"), "run it again later"),
    (Fault("flip"), "changed or damaged|FlexibleChecksumError"),
    (Fault("status", status=500, code="InternalError"), "500 InternalError.*run it again later"),
    (Fault("status", status=503, code="SlowDown"), "503 SlowDown.*run it again later.*attempts"),
    (Fault("status", status=409, code="OperationAborted"), "409 OperationAborted"),
    (Fault("status", status=412, code="PreconditionFailed"), "412 PreconditionFailed"),
    (Fault("status", status=404, code="NoSuchBucket"), "404 NoSuchBucket.*create it"),
    (Fault("status", status=403, code="AccessDenied"), "403 AccessDenied.*s3:GetObject"),
    (Fault("status", status=403, code="InvalidAccessKeyId"), "check the credentials"),
    (Fault("status", status=400, code="ExpiredToken"), "expired: renew"),
]


@pytest.mark.parametrize(
    ("fault", "words"),
    LASTING,
    ids=lambda one: named(one) if isinstance(one, Fault) else "",
)
def test_a_lasting_fault_of_reading_is_explained(
    faulty, proxy, direct, bucket, fault, words, tmp_path
):
    put_blob(direct, DATA)
    proxy.faults = [again(fault, times=FOREVER)]
    with pytest.raises(StoreError, match=words) as caught:
        get_blob(faulty, DIGEST)
    assert bucket.name in str(caught.value)
    assert blob_key(DIGEST) in str(caught.value)
    with pytest.raises(StoreError, match=words):
        fetch_blob(faulty, DIGEST, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize("checksum", ["when_supported", "when_required"])
def test_a_service_that_is_always_slow_is_waited_for(
    bucket, proxy, make_bundle, checksum, tmp_path
):
    """Bytes that come count as life: `timeout_s` is of silence, not of the whole."""
    store = open_store(bucket.address(proxy.url, checksum=checksum, timeout_s=1), writes=False)
    folder = make_bundle(weights_bin=DATA)
    proxy.faults = [Fault("slow", "GET|PUT|POST|HEAD", times=FOREVER)]
    publish_bundle(store, folder, ["a"])
    fetch_bundle(store, "a", tmp_path / "out")
    assert proxy.faults[0].hit > 5
    for file in folder.iterdir():
        assert (tmp_path / "out" / file.name).read_bytes() == file.read_bytes()


def test_flipped_bits_are_noticed_without_the_services_checksum(bucket, proxy, direct, tmp_path):
    put_blob(direct, DATA)
    store = open_store(bucket.address(proxy.url, checksum="when_required"), writes=False)
    proxy.faults = [Fault("flip", times=FOREVER)]
    with pytest.raises(DamagedError, match="changed or damaged"):
        get_blob(store, DIGEST)
    with pytest.raises(DamagedError, match="changed or damaged"):
        fetch_blob(store, DIGEST, tmp_path / "copy")


WRITE_FAULTS = [
    Fault("timeout", "PUT|POST"),
    Fault("lost", "PUT|POST"),
    Fault("reset", "PUT|POST"),
    Fault("garble", "PUT"),
    Fault("status", "PUT|POST", times=2, status=500, code="InternalError"),
    Fault("status", "PUT|POST", times=2, status=503, code="SlowDown"),
    Fault("status", "PUT|POST", times=2, status=409, code="ConditionalRequestConflict"),
    Fault("status", "PUT|POST", times=1, status=412, code="PreconditionFailed"),
]


@pytest.mark.parametrize("fault", WRITE_FAULTS, ids=named)
def test_a_write_survives_a_passing_fault(faulty, proxy, direct, fault):
    proxy.faults = [again(fault, path=KEY)]
    assert put_blob(faulty, DATA) == DIGEST
    assert proxy.faults[0].hit == fault.times
    assert get_blob(direct, DIGEST) == DATA


STEPS = [("POST", "uploads"), ("PUT", "partNumber=2"), ("POST", "uploadId")]


@pytest.mark.parametrize(
    ("method", "step", "fault"),
    [
        (method, step, fault)
        for method, step in STEPS
        for fault in WRITE_FAULTS
        if fault.status != 412 and (fault.kind != "garble" or method == "PUT")
    ],
    ids=lambda one: named(one) if isinstance(one, Fault) else one,
)
def test_parts_survive_a_passing_fault(faulty, proxy, direct, bucket, method, step, fault):
    proxy.faults = [again(fault, method=method, path=step)]
    digest = put_blob(faulty, BIG)
    assert proxy.faults[0].hit >= 1
    assert get_blob(direct, digest) == BIG
    left = bucket.client.list_multipart_uploads(Bucket=bucket.name).get("Uploads", ())
    # where the answer to a start was lost, nobody knows the upload's id: `collage gc` removes it
    assert len(left) <= (step == "uploads" and fault.kind == "lost")


@pytest.mark.parametrize("fault", WRITE_FAULTS, ids=named)
@pytest.mark.parametrize("exists", [False, True])
def test_an_alias_moves_once_whatever_happens(faulty, proxy, direct, fault, exists):
    one, two = digest_of(b"one"), digest_of(b"two")
    if exists:
        move_alias(direct, "a", one)
    proxy.faults = [again(fault, path="aliases/")]
    assert move_alias(faulty, "a", two)
    assert proxy.faults[0].hit == fault.times
    found = read_alias(direct, "a")
    assert (found.bundle, found.previous) == (two, one if exists else None)


def test_a_412_for_another_writers_move_is_lost(faulty, proxy, direct):
    """Somebody moves the alias between the reading and the writing."""
    one, two = digest_of(b"one"), digest_of(b"two")
    seen = faulty.read("aliases/a.json")
    assert seen is None
    move_alias(direct, "a", one)
    proxy.faults = [Fault("status", "PUT", status=500, code="InternalError")]
    assert not faulty.swap("aliases/a.json", b"other", None)
    with pytest.raises(StoreError, match="somebody moved it"):
        move_alias(faulty, "a", digest_of(b"three"), expected=two)
    assert read_alias(direct, "a").bundle == one


LASTING_WRITES = [
    (Fault("timeout", "PUT"), "ReadTimeoutError"),
    (Fault("garble", "PUT"), "run it again"),
    (Fault("status", "PUT", status=409, code="ConditionalRequestConflict"), "Other writers"),
    (Fault("status", "PUT", status=503, code="SlowDown"), "503 SlowDown"),
    (Fault("status", "PUT", status=404, code="NoSuchBucket"), "NoSuchBucket.*create it"),
    (Fault("status", "PUT", status=403, code="AccessDenied"), "s3:PutObject"),
    (Fault("status", "PUT", status=507, code="QuotaExceeded"), "bucket is full"),
]


@pytest.mark.parametrize(
    ("fault", "words"),
    LASTING_WRITES,
    ids=lambda one: named(one) if isinstance(one, Fault) else "",
)
def test_a_lasting_fault_of_publishing_leaves_no_bundle(
    faulty, proxy, direct, bucket, make_bundle, fault, words
):
    proxy.faults = [again(fault, times=FOREVER)]
    with pytest.raises(StoreError, match=words) as caught:
        publish_bundle(faulty, make_bundle(), ["a"])
    assert f"s3://{bucket.name}/team/collage/blobs/" in str(caught.value)
    assert list(list_bundles(direct)) == []
    assert read_alias(direct, "a") is None


def test_the_manifest_is_last_and_the_alias_after_it(faulty, proxy, direct, make_bundle):
    folder = make_bundle()
    proxy.faults = [Fault("status", "PUT", "/bundles/", FOREVER, 503, "SlowDown")]
    with pytest.raises(StoreError):
        publish_bundle(faulty, folder, ["a"])
    assert read_alias(direct, "a") is None
    proxy.faults = [Fault("status", "PUT", "/aliases/", FOREVER, 503, "SlowDown")]
    with pytest.raises(StoreError):
        publish_bundle(faulty, folder, ["a"])
    assert len(list(list_bundles(direct))) == 1
    assert read_alias(direct, "a") is None


def test_a_bucket_that_disappears(faulty, direct, bucket, make_bundle, tmp_path):
    folder = make_bundle()
    digest = publish_bundle(faulty, folder, ["a"]).digest
    for key in bucket.objects():
        bucket.client.delete_object(Bucket=bucket.name, Key=key)
    bucket.client.delete_bucket(Bucket=bucket.name)
    for act in (
        lambda: publish_bundle(faulty, folder, ["a"]),
        lambda: fetch_bundle(faulty, digest, tmp_path / "out"),
        lambda: fetch_bundle(faulty, "a", tmp_path / "out"),
        lambda: list(faulty.entries("")),
        lambda: faulty.remove_partial(0.0, dry_run=True),
    ):
        with pytest.raises(StoreError, match=f"s3://{bucket.name}/.*NoSuchBucket.*create it"):
            act()


@pytest.mark.parametrize("seed", range(3))
def test_random_faults_give_the_right_bundle_or_an_error(
    bucket, proxy, direct, make_bundle, tmp_path, seed
):
    chance = random.Random(seed)
    kinds = ["reset", "truncate", "flip", "garble", "status", "slow"]
    plan = proxy.fault_for

    def fault_for(method, path):
        if chance.random() > 0.15:
            return plan(method, path)
        status, code = chance.choice([(500, "InternalError"), (503, "SlowDown"), (409, "Conflict")])
        return Fault(chance.choice(kinds), status=status, code=code)

    proxy.fault_for = fault_for
    store = open_store(bucket.address(proxy.url, checksum="when_required"), writes=False)
    for number in range(4):
        folder = make_bundle(f"{number}", weights_bin=DATA, plan_json=b"%d" % number)
        files = {file.name: file.read_bytes() for file in folder.iterdir()}
        refusal = None
        try:
            publish_bundle(store, folder, ["a"])
            fetch_bundle(store, "a", tmp_path / "out")
        except StoreError as error:
            refusal = str(error)
        if refusal is None:
            assert {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()} == files
        assert refusal is None or bucket.name in refusal
    for digest in list_bundles(direct):
        fetch_bundle(direct, digest, tmp_path / "check")


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
        Fault("status", "PUT", times=FOREVER, status=501, code="NotImplemented"),
        Fault("status", "PUT", times=FOREVER, status=400, code="InvalidArgument"),
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


def test_a_service_that_compares_bare_etags_is_understood(bucket, proxy):
    proxy.faults = [Fault("bare", "PUT", times=FOREVER)]
    store = open_store(bucket.address(proxy.url))
    one, two = digest_of(b"one"), digest_of(b"two")
    assert move_alias(store, "a", one)
    assert move_alias(store, "a", two)
    assert read_alias(store, "a").previous == one


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
        "gs://bucket",
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
    from collage.store.s3 import S3Store

    sent = []
    send = S3Store._call
    monkeypatch.setattr(
        S3Store,
        "_call",
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
    for one in writes:
        assert (one["ServerSideEncryption"], one["SSEKMSKeyId"], one["BucketKeyEnabled"]) == (
            "aws:kms",
            "alias/models",
            True,
        )
        assert not any(name.startswith("Checksum") for name in one)


def test_a_blob_that_is_used_again_is_young_again(faulty, proxy, monkeypatch):
    """Age cannot be faked on a real server; so everything above 0 seconds counts as old here."""
    put_blob(faulty, DATA)
    put_blob(faulty, DATA)
    assert proxy.count("PUT", KEY) == 1
    monkeypatch.setattr("collage.store.s3.YOUNG_S", -1.0)
    put_blob(faulty, DATA)
    assert proxy.count("PUT", KEY, 200) == 2


def test_a_big_blob_is_sent_in_parts_with_the_condition_on_the_last_step(faulty, proxy, direct):
    digest = digest_of(BIG)
    stat = faulty.stat

    def somebody_is_faster(key):
        found = stat(key)
        if found is None:
            put_blob(direct, BIG)
        return found

    faulty.stat = somebody_is_faster
    assert put_blob(faulty, BIG) == digest
    assert proxy.count("PUT", "partNumber", 200) == 3
    assert proxy.count("POST", "uploadId", 412) == 1
    assert proxy.count("DELETE", "uploadId") == 1
    assert get_blob(direct, digest) == BIG


@pytest.mark.parametrize(
    ("settings", "start"),
    [
        ("addressing=path", "http://minio:9000/models/"),
        ("addressing=virtual", "http://models.minio:9000/"),
    ],
)
def test_addressing(credentials, settings, start):
    address = f"s3://models/team?endpoint=http://minio:9000&region=us-east-1&{settings}"
    client = open_store(address, writes=False)._client
    sent_to = client.generate_presigned_url("get_object", Params={"Bucket": "models", "Key": "k"})
    assert sent_to.startswith(start)
