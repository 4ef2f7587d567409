import errno

import numpy as np
import pytest

from collage.bundle import save
from collage.bundle.manifest import Cpu, ManifestDocument, OriginalModel, Provenance
from collage.errors import BundleError
from collage.store.blobs import digest_of


def manifest(files):
    provenance = Provenance(
        models=(OriginalModel(path="m.onnx", sha256="0"),),
        collage_version="0", environment_digest="0", seed=0,
    )  # fmt: skip
    return ManifestDocument(
        functions=(), threads=1, cpu=Cpu(model="cpu", features=()), libraries={}, gate=(),
        provenance=provenance, files=files,
    )  # fmt: skip


@pytest.fixture
def executable(tmp_path):
    file = tmp_path / "in.so"
    file.write_bytes(b"code")
    return file


def publish(output, executable, text="{}"):
    golden = {"main/input/x": np.ones(3, np.float32)}
    return save.save_bundle(
        output, executable, {"plan.json": text}, golden=golden, manifest=manifest
    )


def test_every_file_has_its_digest(tmp_path, executable):
    manifest = publish(tmp_path / "bundle", executable)
    assert set(manifest.files) == {"model.so", "golden.npz", "plan.json"}
    for name, digest in manifest.files.items():
        assert digest_of(tmp_path / "bundle" / name) == digest
    read = ManifestDocument.model_validate_json((tmp_path / "bundle" / "manifest.json").read_text())
    assert read == manifest


def test_a_second_save_replaces_the_bundle_whole(tmp_path, executable):
    publish(tmp_path / "bundle", executable)
    (tmp_path / "bundle" / "stale.txt").write_text("old")
    publish(tmp_path / "bundle", executable, '{"new": 1}')
    assert (tmp_path / "bundle" / "plan.json").read_text() == '{"new": 1}'
    assert not (tmp_path / "bundle" / "stale.txt").exists()
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_a_folder_that_is_no_bundle_is_not_overwritten(tmp_path, executable):
    output = tmp_path / "photos"
    output.mkdir()
    (output / "cat.jpg").write_bytes(b"cat")
    with pytest.raises(BundleError, match="not overwritten"):
        publish(output, executable)
    assert (output / "cat.jpg").read_bytes() == b"cat"


def test_a_full_disk_keeps_the_old_bundle(tmp_path, executable, monkeypatch):
    publish(tmp_path / "bundle", executable)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(save.shutil, "copyfile", full)
    with pytest.raises(BundleError, match="No space left on device"):
        publish(tmp_path / "bundle", executable, '{"new": 1}')
    assert (tmp_path / "bundle" / "plan.json").read_text() == "{}"
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []
