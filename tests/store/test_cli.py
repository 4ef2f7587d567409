import json
import os

import pytest

from collage.cli import main
from collage.store import open_store
from collage.store.blobs import blob_key, digest_of, put_blob
from collage.store.manifests import bundle_key


def run(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    return code, capsys.readouterr()


def test_publish_alias_fetch(address, make_bundle, tmp_path, capsys):
    first_folder, two = make_bundle("one"), make_bundle("two", plan_json=b"[2]")
    code, said = run(capsys, "publish", first_folder, address, "--alias", "ocr/production")
    first = digest_of(first_folder / "manifest.json")
    assert (code, said.out) == (0, f"{first}\nocr/production now points to it\n")
    _, said = run(capsys, "publish", first_folder, address, "--alias", "ocr/production")
    assert said.out == f"{first}\nocr/production already pointed to it\n"
    _, said = run(capsys, "publish", two, address, "--json")
    second = json.loads(said.out)["bundle"]
    code, said = run(capsys, "alias", address, "ocr/production", second, "--expect", second)
    assert code == 6
    assert "somebody moved it" in said.err
    code, said = run(capsys, "alias", address, "ocr/production", second, "--expect", first)
    assert (code, said.out) == (0, f"ocr/production  {second}\n")
    _, said = run(capsys, "aliases", address, "--json")
    assert json.loads(said.out) == {
        "aliases": [{"alias": "ocr/production", "bundle": second, "previous": first}]
    }
    code, said = run(capsys, "fetch", address, "ocr/production", "-o", tmp_path / "out")
    assert (code, said.out) == (0, f"{tmp_path / 'out'}\n")
    assert (tmp_path / "out" / "plan.json").read_bytes() == b"[2]"


def test_an_alias_cannot_stand_for_nothing(address, capsys):
    code, said = run(capsys, "alias", address, "a", "0" * 64)
    assert code == 6
    assert "has no bundle" in said.err


UNPROVEN = {"main": "not slower", "main_1": "unproven"}


def test_an_unproven_bundle_is_not_published(address, make_bundle, capsys):
    code, said = run(capsys, "publish", make_bundle(verdicts=UNPROVEN), address, "--alias", "a")
    assert code == 4
    assert "main_1 is unproven" in said.err
    assert "without --allow-slower" in said.err
    store = open_store(address)
    assert list(store.entries("bundles/")) == list(store.entries("aliases/")) == []


def test_no_alias_is_moved_to_an_unproven_bundle(address, make_bundle, capsys):
    """Whatever way it took into the store."""
    proven, unproven = make_bundle("one"), make_bundle("two", verdicts=UNPROVEN)
    run(capsys, "publish", proven, address, "--alias", "a")
    digest = digest_of(unproven / "manifest.json")
    open_store(address).create(bundle_key(digest), (unproven / "manifest.json").read_bytes())
    code, said = run(capsys, "alias", address, "a", digest)
    assert code == 4
    assert f"the bundle {digest} is for trying out only" in said.err
    _, said = run(capsys, "aliases", address)
    assert said.out == f"a  {digest_of(proven / 'manifest.json')}\n"


def test_gc_keeps_records_as_long_as_it_is_told(tmp_path, capsys):
    store = open_store(tmp_path / "store")
    costs, request = f"costs/{'0' * 64}/{'1' * 64}.jsonl", f"requests/{'0' * 64}.json"
    for key in (costs, request):
        store.create(key, b"{}")
        os.utime(store.root / key, (0, 0))
    code, said = run(capsys, "gc", tmp_path / "store", "--keep", "costs=99999d", "--json")
    assert code == 0
    assert json.loads(said.out)["deleted"] == [request]
    code, said = run(capsys, "gc", tmp_path / "store", "--keep", "kittens=3d")
    assert code == 2
    assert "names no kind of record" in said.err


def test_gc_deletes_when_told(address, make_bundle, capsys):
    run(capsys, "publish", make_bundle(), address)
    garbage = blob_key(put_blob(open_store(address), b"garbage"))
    code, said = run(capsys, "gc", address)
    assert code == 0
    assert "would delete 0 objects" in said.out
    _, said = run(capsys, "gc", address, "--older-than", "0s")
    assert said.out.splitlines()[0] == f"would delete {garbage}  7 bytes"
    assert "add --delete" in said.out
    assert open_store(address).stat(garbage)
    _, said = run(capsys, "gc", address, "--older-than", "0s", "--delete", "--json")
    facts = json.loads(said.out)
    assert (facts["dry_run"], facts["deleted"], facts["bundles"]) == (False, [garbage], 1)
    assert open_store(address).stat(garbage) is None


@pytest.mark.parametrize("command", ["aliases", "gc"])
def test_a_folder_that_is_not_there_is_no_empty_store(tmp_path, capsys, command):
    code, said = run(capsys, command, str(tmp_path / "stoer"))
    assert code == 2
    assert "there is no folder" in said.err
    assert not (tmp_path / "stoer").exists()


@pytest.mark.parametrize("command", [["aliases"], ["gc"], ["publish", "{bundle}"]])
def test_a_bad_address_is_a_bad_option(command, make_bundle, capsys):
    bundle = make_bundle()
    words = [word.format(bundle=bundle) for word in command]
    code, said = run(capsys, *words, "s3://bucket/prefix?colour=red")
    assert code == 2
    assert "unknown setting 'colour'" in said.err


def test_doctor_checks_a_shared_store(address, tmp_path, capsys):
    _, said = run(capsys, "doctor", "--cache-dir", tmp_path / "cache", "--store", address, "--json")
    actual = {check["check"]: check["passed"] for check in json.loads(said.out)["checks"]}
    assert actual["shared store"]
    if address.startswith("s3://"):
        words = [
            "doctor",
            "--cache-dir",
            tmp_path / "cache",
            "--store",
            f"{address}&probe=off",
            "--json",
        ]
        _, said = run(capsys, *words)
        (line,) = [
            check for check in json.loads(said.out)["checks"] if check["check"] == "shared store"
        ]
        assert (line["passed"], "takes answers of pods" in line["detail"]) == (True, True)
    _, said = run(capsys, "doctor", "--cache-dir", tmp_path, "--store", "s3://b?x=1", "--json")
    actual = {check["check"]: check for check in json.loads(said.out)["checks"]}
    assert not actual["shared store"]["passed"]
    assert "unknown setting" in actual["shared store"]["detail"]
