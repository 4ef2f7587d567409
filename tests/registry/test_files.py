"""Folders and S3: what makes a version whole, and what changed files come to."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from collage.errors import ModelError, OptionError, RegistryError
from collage.pipeline.version_options import parse_version_options
from collage.registry import VersionStatus, open_registry
from tests.registry.conftest import save_model


def test_an_interrupted_upload_is_no_candidate(file_user, name, tmp_path):
    files = save_model(tmp_path / "new", external=True)
    for file, path in files.items():
        file_user.store.create(f"{name}/1/{file}", path)
    file_user.store.swap(f"{name}/aliases/candidate.json", b'{"version": "1"}', None)
    assert list(file_user.registry.candidates()) == []
    with pytest.raises(RegistryError, match=r"no whole version '1'.*FileRegistry"):
        file_user.registry.find(name)
    version = file_user.registry.add(name, "1", files)
    assert list(file_user.registry.candidates()) == [version]


@pytest.mark.parametrize("text", ["dims: {batch: 1}\n", '{"dims": {"batch": 1}}'])
def test_options_may_be_a_file_of_the_users(file_user, name, text):
    version = file_user.add(name)
    file_user.store.create(f"{name}/{version.version}/options.json", text.encode())
    tags = file_user.registry.user_tags(version)
    assert parse_version_options(tags.options, "").fields == {"dims": {"batch": 1}}
    assert tags.digest


@pytest.mark.parametrize("file", ["model.onnx", "weights.bin"])
@pytest.mark.parametrize("damage", ["changed", "deleted"])
def test_a_damaged_file_is_not_handed_out(file_user, name, tmp_path, file, damage):
    version = file_user.add(name, external=True)
    key = f"{name}/{version.version}/{file}"
    file_user.store.delete(key)
    if damage == "changed":
        file_user.store.create(key, b"other")
    with pytest.raises(ModelError, match=file.replace(".", r"\.")):
        file_user.registry.download(version, tmp_path)
    assert not (tmp_path / file).exists()


def test_a_version_never_changes(file_user, name, tmp_path):
    files = save_model(tmp_path / "a", external=False)
    file_user.registry.add(name, "1", files)
    file_user.registry.add(name, "1", files)
    (tmp_path / "a" / "model.onnx").write_bytes(b"other")
    with pytest.raises(RegistryError, match="never change"):
        file_user.registry.add(name, "1", files)


def test_many_marks_at_once_leave_one_whole(file_user, name):
    version = file_user.add(name)
    marks = [VersionStatus("failed", reason=f"number {number}") for number in range(16)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda status: file_user.registry.record_status(version, status), marks))
    assert file_user.registry.status(version) in marks


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"version": 3}', b'{"version": "../x"}'])
def test_an_alias_that_somebody_garbled(file_user, name, data):
    file_user.add(name)
    file_user.store.swap(f"{name}/aliases/candidate.json", data, None)
    with pytest.raises(RegistryError, match=f"{name}/aliases/candidate.json"):
        file_user.registry.find(name)


def test_a_record_may_not_lead_out_of_the_folder(file_user, name, tmp_path):
    record = {"files": {"model.onnx": "0" * 64, "../evil": "0" * 64}}
    file_user.store.swap(f"{name}/1/version.json", json.dumps(record).encode(), None)
    with pytest.raises(RegistryError, match="damaged"):
        file_user.registry.find(name, "1")


@pytest.mark.parametrize(
    ("name", "version", "file"),
    [("a/b", "1", "model.onnx"), ("a", "aliases", "model.onnx"), ("a", "..", "model.onnx"),
     ("a", "1", "other.onnx")],
)  # fmt: skip
def test_names_that_cannot_be(tmp_path, name, version, file):
    (tmp_path / "x").write_bytes(b"x")
    registry = open_registry(str(tmp_path / "registry"))
    with pytest.raises(OptionError):
        registry.add(name, version, {file: tmp_path / "x"})


def test_a_store_that_fails_is_a_registry_that_fails(tmp_path):
    (tmp_path / "a").write_bytes(b"where the versions of a model belong")
    with pytest.raises(RegistryError, match=f"registry {tmp_path}"):
        open_registry(str(tmp_path)).find("a", "1")
