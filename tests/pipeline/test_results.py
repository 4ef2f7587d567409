"""Finished once, recorded before it is published, and used only when it is better."""

import base64
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from collage.bundle.manifest import ManifestDocument
from collage.cost import Environment
from collage.errors import BundleError, UnprovenError
from collage.pipeline.request import (
    CompileRequest,
    CompileResult,
    FunctionCompileResult,
    NodeInformation,
    RequestedModel,
)
from collage.pipeline.results import claim_result, is_better, node_digest, promote, read_result
from collage.store import open_store
from collage.store.alias_counters import Verification
from collage.store.aliases import AliasSigning, move_alias, read_alias, read_record
from collage.store.base import BlobDigest
from collage.store.blobs import digest_of
from collage.store.bundle_statements import BundleSigning
from collage.store.bundles import fetch_bundle, publish_bundle
from collage.store.statement import SignedModel
from tests.flows.fake_compile_service import gate_entry
from tests.support.keys import make_key

OUTPUT = {"name": "y", "shape": [1], "dtype": "float32"}
REQUEST = CompileRequest(name="m", models=(RequestedModel(model="0" * 64),))


def facts(driver="", **backends):
    environment = Environment("cpu", "", 2, 1, driver, "test")
    return NodeInformation(environment=environment, cache_bytes=1, backends=backends)


def result(bundle="0" * 64, seconds=1e-3, more_s=None):
    times = {"main": seconds} | ({} if more_s is None else {"main_1": more_s})
    functions = tuple(
        FunctionCompileResult(
            function=name, verdict="not slower", predicted_s=None, latency_s={"collage": function}
        )
        for name, function in times.items()
    )
    return CompileResult(
        bundle=bundle, report="", reason="", speedup=1.1, functions=functions, plan=(), measured=0,
        cached=0, invalid=0, seconds={},
    )  # fmt: skip


def manifest(seconds=1e-3, node=None, files=None, verdict="not slower", more_s=None, **toolchains):
    times = {"main": seconds} | ({} if more_s is None else {"main_1": more_s})
    return {
        "schema_version": 3, "executable": "model.so", "threads": 1,
        "functions": [{"function": name, "inputs": [], "outputs": [OUTPUT]} for name in times],
        "cpu": {"model": "cpu", "features": []},
        "libraries": {},
        "gate": [gate_entry(function, verdict, name) for name, function in times.items()],
        "provenance": {
            "models": [], "collage_version": "", "seed": 0,
            "environment_digest": (node or facts()).environment.digest, "toolchains": toolchains,
        },
        "files": files or {},
    }  # fmt: skip


@pytest.fixture
def store(tmp_path):
    return open_store(tmp_path / "store")


@pytest.fixture
def publish(store, tmp_path):
    def make(seconds=1e-3, verdict="not slower", signing=None):
        folder = tmp_path / f"bundle-{seconds}"
        folder.mkdir()
        (folder / "model.so").write_bytes(b"code")
        files = {"model.so": digest_of(b"code")}
        (folder / "manifest.json").write_text(
            json.dumps(manifest(seconds, files=files, verdict=verdict))
        )
        return publish_bundle(store, folder, signing=signing).digest

    return make


def test_a_record_counts_once_its_bundle_is_there(store, publish):
    assert read_result(store, REQUEST, facts()) is None
    dead = result("1" * 64)
    assert claim_result(store, REQUEST, facts(), dead) == dead
    assert read_result(store, REQUEST, facts()) is None, "whoever claimed it has not published it"
    recorded = result(publish())
    assert claim_result(store, REQUEST, facts(), recorded) == recorded
    assert read_result(store, REQUEST, facts()) == recorded
    assert claim_result(store, REQUEST, facts(), dead) == recorded, "another was first"


@pytest.mark.parametrize(
    ("request_", "node"),
    [
        (REQUEST.model_copy(update={"threads": 2}), facts()),
        (REQUEST, facts(driver="new")),
        (REQUEST, facts(onednn="onednn onednn=2")),
    ],
)
def test_another_request_or_node_is_another_result(store, publish, request_, node):
    claim_result(store, REQUEST, facts(), result(publish()))
    assert read_result(store, request_, node) is None


def test_a_damaged_record_is_made_again(store, publish, tmp_path):
    recorded = result(publish())
    claim_result(store, REQUEST, facts(), recorded)
    (record,) = (tmp_path / "store" / "results").rglob("*.json")
    record.write_bytes(record.read_bytes().replace(b"1.1", b"9.9"))
    assert read_result(store, REQUEST, facts()) is None
    assert claim_result(store, REQUEST, facts(), recorded) == recorded


def test_of_many_finishers_one_counts(store, publish):
    results = [result(publish(seconds)) for seconds in (1e-3, 2e-3, 3e-3, 4e-3)]
    with ThreadPoolExecutor(4) as pool:
        claimed = list(
            pool.map(lambda outcome: claim_result(store, REQUEST, facts(), outcome), results)
        )
    assert len({outcome.bundle for outcome in claimed}) == 1


def test_node_digests_differ_where_a_plan_may():
    digests = {node_digest(node) for node in (facts(), facts("d"), facts(onednn="onednn onednn=2"))}
    assert len(digests) == 3


@pytest.mark.parametrize(
    ("made", "standing", "node", "better", "why"),
    [
        (result(), None, facts(), True, "first"),
        (result(seconds=0.9e-3), manifest(1e-3), facts(), True, "1.11x"),
        (result(seconds=0.995e-3), manifest(1e-3), facts(), False, "as fast"),
        (result(seconds=2e-3), manifest(1e-3), facts(), False, "0.50x"),
        (result(seconds=2e-3), manifest(1e-3), facts("new driver"), True, "another environment"),
        (result(seconds=2e-3, more_s=1e-3), manifest(1e-3), facts(), True, "other functions"),
        (result(seconds=1e-3, more_s=1e-3), manifest(1e-3, more_s=2e-3), facts(), True, "1.41x"),
        (result(seconds=1e-3, more_s=2e-3), manifest(2e-3, more_s=1e-3), facts(), False, "as fast"),
        (
            result(seconds=2e-3),
            manifest(a="a x=1"),
            facts(a="a x=2"),
            True,
            "a x=1, and the node has a x=2",
        ),
        (result(seconds=2e-3), manifest(a="a x=1"), facts(), True, "a x=1, and the node has none"),
        (result(seconds=2e-3), manifest(a="a x=1"), facts(a="a x=1", b="b y=1"), False, "as fast"),
    ],
)
def test_what_is_better(made, standing, node, better, why):
    found = is_better(node, made, ManifestDocument.model_validate(standing) if standing else None)
    assert found[0] == better
    assert why in found[1]


def test_nothing_stands_for_what_is_not_proven(store, publish, monkeypatch):
    standing = result(publish(2e-3), 2e-3)
    promote(store, "m/1/a", facts(), standing)
    monkeypatch.setattr("collage.store.bundles.refuse_unproven", lambda *_: None)
    faster = result(publish(1e-3, "slower"), 1e-3)
    monkeypatch.undo()
    with pytest.raises(UnprovenError, match="main is slower"):
        promote(store, "m/1/a", facts(), faster)
    assert read_alias(store, "m/1/a").bundle == standing.bundle


def test_an_alias_moves_to_what_is_better_and_no_further(store, publish):
    first, slower, faster = (result(publish(s), s) for s in (2e-3, 3e-3, 1e-3))
    assert promote(store, "m/1/a", facts(), first).moved
    assert not promote(store, "m/1/a", facts(), first).moved
    promotion = promote(store, "m/1/a", facts(), slower)
    assert (promotion.moved, promotion.bundle) == (False, first.bundle)
    assert promote(store, "m/1/a", facts(), faster).moved
    assert read_alias(store, "m/1/a").previous == first.bundle


def test_a_promoted_bundle_is_signed_as_its_version(store, publish, tmp_path):
    by = AliasSigning.by(make_key(tmp_path).signer)
    compiled = result(publish(signing=BundleSigning(by, SignedModel("m"))))
    version = BundleSigning(by, SignedModel("m", "7"))
    assert promote(store, "m/7/a", facts(), compiled, signing=version).moved
    assert not promote(store, "m/7/a", facts(), compiled, signing=version).moved
    checks = Verification(by.keys, tmp_path / "seen")
    fetch_bundle(store, "m/7/a", tmp_path / "out", verification=checks)
    texts = [
        base64.b64decode(json.loads(file.read_bytes())["payload"])
        for file in (tmp_path / "out").glob("statement.*")
    ]
    assert sorted(b'"version": "7"' in text for text in texts) == [False, True]


def test_what_the_finish_did_not_sign_is_not_promoted(store, publish, tmp_path):
    by = AliasSigning.by(make_key(tmp_path).signer)
    forged = result(publish())
    with pytest.raises(BundleError, match="not signed"):
        promote(store, "m/1/a", facts(), forged, signing=BundleSigning(by, SignedModel("m")))
    assert read_alias(store, "m/1/a") is None


def test_a_signed_bundle_of_another_request_is_not_promoted(store, publish, tmp_path):
    by = AliasSigning.by(make_key(tmp_path).signer)
    old = BundleSigning(by, SignedModel("m", request="1" * 64))
    replayed = result(publish(signing=old))
    signing = BundleSigning(by, SignedModel("m", "2", request="2" * 64))
    with pytest.raises(BundleError, match="answers the request"):
        promote(store, "m/2/a", facts(), replayed, signing=signing)
    assert promote(store, "m/1/a", facts(), replayed, signing=old).moved


def test_an_unsigned_standing_alias_counts_as_none(store, publish, tmp_path):
    by = AliasSigning.by(make_key(tmp_path).signer)
    signing = BundleSigning(by, SignedModel("m"))
    faster, slower = publish(1e-3), publish(2e-3, signing=signing)
    move_alias(store, "m/1/a", BlobDigest(faster))
    assert promote(store, "m/1/a", facts(), result(slower, 2e-3), signing=signing).moved
    assert read_record(store, "m/1/a", by.keys).bundle == slower
