"""Publishing to a real S3 server that fails: a whole bundle or none, and never an alias of nothing."""

import random

import pytest

from collage.errors import StoreError
from collage.store import open_store
from collage.store.aliases import read_alias
from collage.store.bundles import fetch_bundle, publish_bundle
from collage.store.manifests import list_bundles
from tests.store.faults import DATA, again, named
from tests.store.proxy import FOREVER, Fault

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
    ids=lambda first: named(first) if isinstance(first, Fault) else "",
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
