"""Keys of the command line and of the environment sign and verify."""

import json

from collage.cli import main
from collage.runtime.signature import trusted_keys
from collage.store.aliases import read_alias, read_record
from collage.store.blobs import digest_of
from tests.store.signing.records import put, record
from tests.support.keys import make_key


def test_the_command_line_signs_and_verifies(address, store, make_bundle, key, tmp_path, capsys):
    folder, out = make_bundle(), tmp_path / "out"
    cache = ["--cache-dir", str(tmp_path / "cache")]
    fetch = ["fetch", address, "--alias", "ocr/a", str(out), *cache, "--verify-key"]
    assert main(["publish", str(folder), address, "--alias", "ocr/a"]) == 0
    assert main([*fetch, str(key.public)]) == 5
    assert "not signed" in capsys.readouterr().err
    assert not out.exists()
    sign = ["--sign-key", str(key.private)]
    assert main(["alias", address, "ocr/a", digest_of(folder / "manifest.json"), *sign]) == 5
    assert main(["publish", str(folder), address, "--alias", "ocr/a", *sign]) == 0
    assert main([*fetch, str(key.public)]) == 0
    second = make_key(tmp_path, "other")
    assert main([*fetch, str(second.public)]) == 5
    assert main([*fetch, str(second.public), "--verify-key", str(key.public)]) == 0
    assert main(["alias", address, "ocr/b", "ocr/a", *sign]) == 0
    assert main(["alias", address, "faces/a", "ocr/a", *sign]) == 5
    assert main(["unalias", address, "ocr/b", *sign]) == 0
    assert read_record(store, "ocr/b", trusted_keys([key.public])).bundle is None
    capsys.readouterr()
    assert main(["publish", str(folder), address, "--model", "ocr"]) == 2
    assert "add --sign-key" in capsys.readouterr().err


def test_what_is_promoted_by_alias_is_verified_too(address, store, publish, key, capsys):
    first = publish("one", "ocr/candidate")
    old = record(store, "ocr/candidate").data
    sign = ["--sign-key", str(key.private)]
    two = publish("two", "ocr/candidate")
    assert main(["alias", address, "ocr/production", "ocr/candidate", *sign]) == 0
    put(store, "ocr/candidate", old)
    assert main(["alias", address, "ocr/production", "ocr/candidate", *sign]) == 5
    assert "set back" in capsys.readouterr().err
    assert read_alias(store, "ocr/production").bundle == two
    assert main(["alias", address, "ocr/production", first, *sign]) == 0, "by digest it is meant"


def test_keys_may_come_from_the_environment(
    address, make_bundle, key, tmp_path, monkeypatch, capsys
):
    out = tmp_path / "out"
    fetch = ["fetch", address, "--alias", "ocr/a", str(out), "--cache-dir", str(tmp_path / "cache")]
    monkeypatch.setenv("COLLAGE_VERIFY_KEYS", str(key.public))
    assert main(["publish", str(make_bundle()), address, "--alias", "ocr/a"]) == 0
    assert main(fetch) == 5
    monkeypatch.setenv("COLLAGE_SIGN_KEY", str(key.private))
    assert main(["publish", str(tmp_path / "bundle"), address, "--alias", "ocr/a"]) == 0
    assert main(fetch) == 0
    monkeypatch.setenv("COLLAGE_VERIFY_KEYS", str(tmp_path / "absent"))
    assert main(fetch) == 2


def test_a_bundle_is_signed_as_the_model_of_its_first_alias(store, make_bundle, key, tmp_path):
    folder, sign = make_bundle(), ["--sign-key", str(key.private)]
    manifest = json.loads((folder / "manifest.json").read_text())
    target = str(tmp_path / "target")
    assert main(["publish", str(folder), target, *sign]) == 2, "no name anywhere"
    manifest["provenance"] = {"models": [{"path": "words.onnx", "sha256": "0" * 64}]}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    for options in ([], ["--alias", "ocr/a"], ["--alias", "ocr/a", "--model", "ocr/a"]):
        assert main(["publish", str(folder), target, *sign, *options]) == 0
    assert len(list(folder.glob("statement.*"))) == 3
