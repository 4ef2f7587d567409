"""Statements of bundles and the keys that are trusted: what counts, what does not, and what is said."""

import base64
import json
import logging
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from collage.errors import BundleError, OptionError
from collage.runtime import signature
from collage.runtime.bundle_folder import BundleFolder
from collage.runtime.envelope import ALIAS, STATEMENT, Signer
from collage.runtime.signature import (
    configured_keys,
    trusted_keys,
    verified_statement,
    verify_statement,
)
from collage.store.statement import SignedModel, sign_bundle, statement
from tests.support.keys import make_key

MANIFEST = {
    "files": {"model.so": "0" * 64, "plan.json": "1" * 64},
    "provenance": {
        "models": [{"path": "ocr.onnx", "sha256": "2" * 64}], "environment_digest": "3" * 64,
        "collage_version": "0.1.0", "seed": 7, "toolchains": {"tvm": "tvm 0.27"},
    },
}  # fmt: skip
DOCS = Path(__file__).parents[2] / "docs"
NOW = datetime.now(UTC)


@pytest.fixture
def key(tmp_path):
    return make_key(tmp_path)


@pytest.fixture
def bundle(tmp_path, key):
    """A folder with a manifest and a statement by the key."""
    folder = tmp_path / "bundle"
    folder.mkdir()
    (folder / "manifest.json").write_text(json.dumps(MANIFEST))
    sign_bundle(folder, key.signer, SignedModel("ocr", "3"))
    return folder


def verify_folder(folder, keys):
    opened = BundleFolder(folder)
    return verify_statement(opened.read, opened.names(), keys)


def trust(tmp_path, *entries, revoked=()):
    file = tmp_path / "trust.json"
    file.write_text(json.dumps({"keys": entries, "revoked": list(revoked)}))
    return trusted_keys([file])


def test_a_statement_says_what_the_bundle_is(bundle, key):
    (file,) = bundle.glob("statement.*.dsse.json")
    envelope = json.loads(file.read_bytes())
    document = json.loads(base64.b64decode(envelope["payload"]))
    assert envelope["payloadType"] == "application/vnd.in-toto+json"
    assert document["_type"] == "https://in-toto.io/Statement/v1"
    assert document["predicateType"] == "https://slsa.dev/provenance/v1"
    build = document["predicate"]["buildDefinition"]
    assert build["externalParameters"] == {
        "model": {"name": "ocr", "version": "3"}, "environment": "3" * 64,
    }  # fmt: skip
    model, source, toolchain = build["resolvedDependencies"]
    assert model == {"name": "ocr.onnx", "digest": {"sha256": "2" * 64}}
    assert source["uri"] == "pkg:pypi/collage@0.1.0"
    assert toolchain == {"name": "tvm", "annotations": {"identity": "tvm 0.27"}}
    assert document["predicate"]["runDetails"]["byproducts"] == [
        {"name": "plan.json", "digest": {"sha256": "1" * 64}}
    ]


def test_verified_bytes_are_the_manifests(bundle, key):
    keys = trusted_keys([key.public])
    content = (bundle / "manifest.json").read_bytes()
    assert verify_folder(bundle, keys) == content
    names = [file.name for file in bundle.iterdir()]
    statement = verified_statement(lambda name: (bundle / name).read_bytes(), names, keys)
    assert (statement.manifest, statement.model, statement.version) == (content, "ocr", "3")
    assert statement.environment == "3" * 64


def test_nothing_is_read_but_manifest_and_statements(bundle, key):
    (bundle / "model.so").write_bytes(b"code")
    read = []

    def spy(name):
        read.append(name)
        return (bundle / name).read_bytes()

    names = [file.name for file in bundle.iterdir()]
    verify_statement(spy, names, trusted_keys([key.public]))
    assert read[0] == "manifest.json"
    assert [name.partition(".")[0] for name in read[1:]] == ["statement"]


def test_signing_again_gives_the_same_file(bundle, key):
    (file,) = bundle.glob("statement.*")
    before = file.read_bytes()
    assert sign_bundle(bundle, key.signer, SignedModel("ocr", "3")) == file
    assert file.read_bytes() == before


def test_a_swapped_manifest_is_refused(bundle, key):
    keys = trusted_keys([key.public])
    (bundle / "manifest.json").write_text(json.dumps(MANIFEST | {"files": {"model.so": "f" * 64}}))
    with pytest.raises(BundleError, match="of another manifest"):
        verify_folder(bundle, keys)


def test_a_bundle_without_a_statement_is_refused(bundle, key):
    for file in bundle.glob("statement.*"):
        file.unlink()
    with pytest.raises(BundleError, match=r"not signed.*--sign-key"):
        verify_folder(bundle, trusted_keys([key.public]))


def damaged(envelope, damage):
    if damage == "payload":
        document = json.loads(base64.b64decode(envelope["payload"]))
        document["subject"][0]["digest"]["sha256"] = "f" * 64
        envelope["payload"] = base64.b64encode(json.dumps(document).encode()).decode()
    elif damage == "signature":
        envelope["signatures"][0]["sig"] = base64.b64encode(bytes(64)).decode()
    elif damage == "no signature":
        envelope["signatures"] = []
    elif damage == "kind":
        envelope["payloadType"] = ALIAS
    elif damage == "many":
        envelope["signatures"] *= 1000
    return json.dumps(envelope).encode()


@pytest.mark.parametrize(
    ("damage", "said"),
    [("payload", "is wrong"), ("signature", "is wrong"), ("no signature", "holds no signature"),
     ("kind", "signed as"), ("many", "damaged")],
)  # fmt: skip
def test_a_changed_envelope_is_refused(bundle, key, damage, said):
    (file,) = bundle.glob("statement.*")
    file.write_bytes(damaged(json.loads(file.read_bytes()), damage))
    with pytest.raises(BundleError, match=said):
        verify_folder(bundle, trusted_keys([key.public]))


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b"null", b"[" * 100_000, b" " * (2 << 20), b'{"payloadType": 1}']
)
def test_a_garbled_envelope_is_refused(bundle, key, content):
    (file,) = bundle.glob("statement.*")
    file.write_bytes(content)
    with pytest.raises(BundleError, match=r"damaged|bytes"):
        verify_folder(bundle, trusted_keys([key.public]))


def test_a_signature_of_another_kind_proves_nothing(bundle, key):
    (file,) = bundle.glob("statement.*")
    payload = base64.b64decode(json.loads(file.read_bytes())["payload"])
    envelope = json.loads(key.signer.sign(ALIAS, payload))
    file.write_bytes(json.dumps(envelope | {"payloadType": STATEMENT}).encode())
    with pytest.raises(BundleError, match="is wrong"):
        verify_folder(bundle, trusted_keys([key.public]))


@pytest.mark.parametrize(
    "payload",
    [b"{}", b"[]", b"text", json.dumps({"_type": "x", "predicateType": "y"}).encode()],
)
def test_a_signed_text_that_is_no_statement_is_refused(bundle, key, payload):
    (file,) = bundle.glob("statement.*")
    file.write_bytes(key.signer.sign(STATEMENT, payload))
    with pytest.raises(BundleError, match=r"no statement of a bundle|another kind"):
        verify_folder(bundle, trusted_keys([key.public]))


def test_either_of_two_keys_is_enough(bundle, key, tmp_path):
    new, second = make_key(tmp_path, "new"), make_key(tmp_path, "other")
    trusted = trusted_keys([key.public, new.public])
    assert verify_folder(bundle, trusted)
    with pytest.raises(BundleError, match="not among the trusted"):
        verify_folder(bundle, trusted_keys([second.public]))
    (tmp_path / "both.pem").write_bytes(key.public.read_bytes() + new.public.read_bytes())
    assert trusted_keys([tmp_path / "both.pem"]).keys == trusted.keys


def test_a_key_is_rotated_without_a_gap(bundle, key, tmp_path):
    new = make_key(tmp_path, "new")
    old_reader, new_reader = trusted_keys([key.public]), trusted_keys([new.public])
    with pytest.raises(BundleError, match="not among the trusted"):
        verify_folder(bundle, new_reader)
    sign_bundle(bundle, new.signer, SignedModel("ocr", "3"))
    for reader in (old_reader, trusted_keys([key.public, new.public]), new_reader):
        assert verify_folder(bundle, reader)


@pytest.mark.parametrize(
    ("start", "end", "said"),
    [(-2, -1, "expired at"), (1, 2, "counts from"), (-1, 1, None), (None, 1, None), (-1, None, None)],
)  # fmt: skip
def test_a_key_counts_only_in_its_time(bundle, key, tmp_path, start, end, said):
    limits = {"not_before": start, "not_after": end}
    times = {
        name: (NOW + timedelta(hours=hours)).isoformat()
        for name, hours in limits.items()
        if hours is not None
    }
    keys = trust(tmp_path, {"file": key.public.name, **times})
    if said is None:
        assert verify_folder(bundle, keys)
        return
    with pytest.raises(BundleError, match=said):
        verify_folder(bundle, keys)


def test_a_revoked_key_counts_for_nothing(bundle, key, tmp_path):
    second = make_key(tmp_path, "other")
    keys = trust(tmp_path, {"pem": second.public.read_text()}, revoked=[key.key_id])
    with pytest.raises(BundleError, match="is revoked"):
        verify_folder(bundle, keys.joined(trusted_keys([key.public])))
    with pytest.raises(BundleError, match="is revoked"):
        verify_folder(bundle, trusted_keys([key.public]).joined(keys))


def test_a_key_signs_only_for_its_models(bundle, key, tmp_path):
    assert verify_folder(bundle, trust(tmp_path, {"file": "ours.pub", "models": ["oc*"]}))
    keys = trust(tmp_path, {"file": "ours.pub", "models": ["faces"]})
    with pytest.raises(BundleError, match="may not sign for the model 'ocr'"):
        verify_folder(bundle, keys)


def test_sources_of_keys_only_restrict_each_other(bundle, key, tmp_path):
    folder = tmp_path / "keys"
    folder.mkdir()
    (folder / "..data.pub").write_text("a link of a mounted Secret is not read")
    (folder / "key.pub").write_bytes(key.public.read_bytes())
    assert verify_folder(bundle, trusted_keys([folder]))
    past = (NOW - timedelta(hours=1)).isoformat()
    entry = {"file": "key.pub", "not_after": past}
    (folder / "trust.json").write_text(json.dumps({"keys": [entry]}))
    with pytest.raises(BundleError, match="expired"):
        verify_folder(bundle, trusted_keys([folder]))


@pytest.mark.parametrize(
    "content",
    ['{"key": []}', "[]", "{", '{"keys": [{}]}', '{"revoked": ["abc"]}', '{"keys": [{"pem": "x"}]}',
     '{"keys": [{"file": "ours.pub", "not_after": "2027-01-01T00:00:00"}]}',
     '{"keys": [{"file": "ours.pub", "models": "ocr"}]}', '{"keys": [{"file": "absent.pub"}]}',
     '{"keys": [{"file": "ours.pub", "not_afetr": null}]}', "{}"],
)  # fmt: skip
def test_a_wrong_trust_file_is_refused(key, tmp_path, content):
    (tmp_path / "wrong.json").write_text(content)
    with pytest.raises(OptionError, match=r"wrong\.json|absent\.pub"):
        trusted_keys([tmp_path / "wrong.json"])


def test_bad_keys_say_how_to_make_one(key, tmp_path):
    with pytest.raises(OptionError, match=r"no private Ed25519 key.*openssl"):
        Signer(key.public)
    with pytest.raises(OptionError, match=r"no public Ed25519 key.*openssl"):
        trusted_keys([key.private])
    for read in (lambda: trusted_keys([tmp_path / "absent"]), lambda: Signer(tmp_path / "absent")):
        with pytest.raises(OptionError, match="cannot be read"):
            read()
    (tmp_path / "empty").mkdir()
    with pytest.raises(OptionError, match=r"no trusted key.*openssl"):
        trusted_keys([tmp_path / "empty"])


def test_keys_of_openssl_sign_and_verify(bundle, tmp_path):
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    private, public = tmp_path / "made.pem", tmp_path / "made.pub"
    make = ["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(private)]
    subprocess.run(make, check=True)
    publish = ["openssl", "pkey", "-in", str(private), "-pubout", "-out", str(public)]
    subprocess.run(publish, check=True)
    raw = "openssl pkey -pubin -in key.pub -outform DER | tail -c 32 | sha256sum"
    assert raw in (DOCS / "security.md").read_text()
    output = subprocess.check_output(raw.replace("key.pub", str(public)), shell=True, text=True)
    assert output.split()[0] == Signer(private).key_id
    sign_bundle(bundle, Signer(private), SignedModel("ocr"))
    assert verify_folder(bundle, trusted_keys([public]))


def test_no_configured_key_is_said_once(key, monkeypatch, caplog):
    signature._say_unverified.cache_clear()
    monkeypatch.delenv("COLLAGE_VERIFY_KEYS", raising=False)
    with caplog.at_level(logging.WARNING):
        assert configured_keys() is None
        assert configured_keys() is None
    assert [record.getMessage() for record in caplog.records] == [
        "signatures of bundles are not verified: no key is configured (--verify-key or "
        "COLLAGE_VERIFY_KEYS)"
    ]
    monkeypatch.setenv("COLLAGE_VERIFY_KEYS", f"{key.public}:{key.public}")
    assert set(configured_keys().keys) == {key.key_id}


def test_a_manifest_that_is_none_is_not_signed():
    for content in (b"", b"[]", b"{}", b'{"files": 1}', b"[" * 100_000):
        with pytest.raises(BundleError, match="not signed"):
            statement(content, SignedModel("ocr"))
