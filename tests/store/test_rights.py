"""Users with the policies of the chart's page: what each may do to a store on a real S3 server."""

import pytest

from collage.errors import StoreError
from collage.store import open_store
from tests.store import policies, versitygw

MAY_WRITE = {
    "measure": {"answers", "blobs", "costs", "kernels", "shards"},
    "finish": {
        "answers",
        "blobs",
        "bundles",
        "costs",
        "results",
        "searches",
        "signatures",
        "tuning",
    },
}
FOLDERS = (
    "aliases", "answers", "blobs", "bundles", "costs", "kernels", "probe", "requests", "results", "samples",
    "searches", "shards", "signatures", "tuning",
)  # fmt: skip


@pytest.fixture
def as_user(s3_address, monkeypatch):
    def become(user):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", user)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", versitygw.USERS[user])
        return open_store(f"{s3_address}&probe=off")

    return become


def may(do):
    try:
        do()
    except StoreError as refused:
        if "403" not in str(refused):
            raise
        return False
    return True


@pytest.mark.parametrize("user", MAY_WRITE)
def test_a_user_writes_where_its_pods_do_and_nowhere_else(store_of_all, as_user, user):
    """What leads to code that others run (aliases; for measuring pods bundles too) is not theirs."""
    store = as_user(user)
    allowed = {
        folder
        for folder in FOLDERS
        if may(lambda folder=folder: store.create(f"{folder}/new", b"new"))
    }
    assert allowed == MAY_WRITE[user]
    assert not may(lambda: store.delete("costs/old")), "nothing is theirs to delete"
    assert not may(lambda: store.read("aliases/old"))
    assert store.read("requests/old").data == b"old"
    assert store.read("samples/old").data == b"old", "pods measure on the user's samples"


@pytest.fixture
def store_of_all(s3_address):
    store = open_store(s3_address)
    for folder in FOLDERS:
        store.create(f"{folder}/old", b"old")
    return store


@pytest.mark.parametrize("user", MAY_WRITE)
def test_the_policies_name_no_more_actions_than_these(user):
    actual = policies.policy(user, "b", "p")
    actions = {action for statement in actual["Statement"] for action in statement["Action"]}
    assert actions == {"s3:ListBucket", "s3:GetObject", "s3:PutObject", "s3:AbortMultipartUpload"}
    assert all(statement["Effect"] == "Allow" for statement in actual["Statement"])
    listing, *remaining = actual["Statement"]
    assert listing["Resource"] == ["arn:aws:s3:::b"]
    assert all(
        r.startswith("arn:aws:s3:::b/p/") for statement in remaining for r in statement["Resource"]
    )
