"""A signed bundle whose code and manifest were swapped: refused wherever it is opened, before it runs."""

import hashlib
import json
import os
import shutil
import subprocess
import sys

import pytest

import collage
from collage.cli import main
from collage.errors import BundleError
from collage.runtime.envelope import ALIAS
from collage.store.statement import SignedModel, sign_bundle
from tests.support.keys import make_key

CONSTRUCTOR = """
#include <cstdio>
#include <cstdlib>
__attribute__((constructor)) static void run() { std::fclose(std::fopen(std::getenv("RAN"), "w")); }
"""


@pytest.fixture
def key(tmp_path):
    return make_key(tmp_path)


@pytest.fixture
def signed(bundle, key, tmp_path):
    """A bundle that the key signed."""
    folder = tmp_path / "signed"
    shutil.copytree(bundle, folder)
    sign_bundle(folder, key.signer, SignedModel("relu"))
    return folder


@pytest.fixture(scope="module")
def hostile_library(tmp_path_factory):
    """A shared library that says so when it is opened."""
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "hostile.cc").write_text(CONSTRUCTOR)
    library = folder / "hostile.so"
    subprocess.run(["g++", "-shared", "-fPIC", folder / "hostile.cc", "-o", library], check=True)
    return library


@pytest.fixture
def swapped(signed, hostile_library):
    """The signed bundle with other code and a manifest that agrees with it."""
    shutil.copyfile(hostile_library, signed / "model.so")
    manifest = json.loads((signed / "manifest.json").read_text())
    digest = hashlib.sha256((signed / "model.so").read_bytes()).hexdigest()
    manifest["files"]["model.so"] = digest
    (signed / "manifest.json").write_text(json.dumps(manifest))
    return signed


def program(*command, ran, **environment):
    done = subprocess.run(
        [sys.executable, *map(str, command)], capture_output=True, text=True, timeout=120,
        env={**os.environ, "RAN": str(ran), **environment},
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


LOAD = "import sys, collage; collage.load(sys.argv[1])"


def test_without_keys_the_swapped_code_runs_and_it_is_said(swapped, tmp_path):
    code, said = program("-c", LOAD, swapped, ran=tmp_path / "ran")
    assert code != 0
    assert (tmp_path / "ran").exists(), "digests alone prove nothing of who wrote them"
    assert "not verified" in said


@pytest.mark.parametrize(
    ("command", "key_source"),
    [("load", "environment"), ("bench", "environment"), ("run", "option"), ("run", "environment"),
     ("serve", "option"), ("serve", "environment")],
)  # fmt: skip
def test_swapped_code_is_refused_before_it_runs(swapped, key, tmp_path, command, key_source):
    commands = {
        "load": ("-c", LOAD, swapped),
        "run": ("-m", "collage", "run", swapped),
        "bench": ("-m", "collage", "bench", swapped),
        "serve": ("-m", "containers.serve", "--bundle", swapped, "--port", "0"),
    }
    option = ("--verify-key", key.public) if key_source == "option" else ()
    environment = {} if option else {"COLLAGE_VERIFY_KEYS": str(key.public)}
    code, said = program(*commands[command], *option, ran=tmp_path / "ran", **environment)
    assert not (tmp_path / "ran").exists()
    assert "of another manifest" in said
    assert code == (1 if command == "load" else 5)


def test_a_signed_bundle_runs_with_its_key_alone(signed, key, tmp_path, capsys):
    second = make_key(tmp_path, "other")
    collage.load(signed, [key.public]).check()
    with pytest.raises(BundleError, match="not among the trusted"):
        collage.load(signed, [second.public])
    assert main(["run", str(signed), "--verify-key", str(key.public)]) == 0
    assert main(["run", str(signed), "--verify-key", str(second.public)]) == 5
    assert "not among the trusted" in capsys.readouterr().err


def test_an_unsigned_bundle_is_not_loaded_with_keys(bundle, key):
    with pytest.raises(BundleError, match="not signed"):
        collage.load(bundle, [key.public])


def test_a_statement_in_an_aliases_context_is_not_loaded(signed, key):
    (file,) = signed.glob("statement.*")
    file.write_bytes(key.signer.sign(ALIAS, b"{}"))
    with pytest.raises(BundleError, match="signed as"):
        collage.load(signed, [key.public])


def test_a_garbled_manifest_is_not_parsed_before_it_is_verified(signed, key):
    (signed / "manifest.json").write_bytes(b"[" * 100_000)
    with pytest.raises(BundleError, match="of another manifest"):
        collage.load(signed, [key.public])
