"""What only a folder can suffer: a full disk, no permission, a killed writer's file."""

import os
import subprocess
import sys
import time

import pytest

from collage.errors import OptionError, StoreError
from collage.store import open_store
from collage.store.blobs import digest_of, get_blob, put_blob
from collage.store.bundles import publish_bundle
from collage.store.directory import DirectoryStore
from collage.store.manifests import list_bundles

LIMITED = """
import resource, signal, sys
from pathlib import Path
from collage.store import open_store
from collage.store.aliases import move_alias
from collage.store.blobs import digest_of, put_blob
from collage.errors import StoreError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = open_store(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), -1))
for act in (lambda: put_blob(store, b"x" * 9999), lambda: move_alias(store, "a", digest_of(b"new"))):
    try:
        act()
    except StoreError as error:
        print(error)
"""


@pytest.mark.parametrize("limit", [0, 50])
def test_a_full_disk_keeps_what_was_there(tmp_path, limit):
    """The kernel refuses to let a file grow, as it does when the disk is full."""
    from collage.store.aliases import move_alias, read_alias

    store = open_store(tmp_path / "store")
    digest = put_blob(store, b"kernel")
    move_alias(store, "a", digest)
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, tmp_path / "store", str(limit)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert f"the store {tmp_path / 'store'} cannot write" in line
        assert "File too large; free space" in line
    assert get_blob(store, digest) == b"kernel"
    assert read_alias(store, "a").bundle == digest
    assert store.stat(f"blobs/{digest_of(b'x' * 9999)[:2]}/{digest_of(b'x' * 9999)}") is None
    assert list((tmp_path / "store" / "tmp").iterdir()) == []


@pytest.fixture
def tiny_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if (
        os.geteuid()
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], capture_output=True
        ).returncode
    ):
        pytest.skip("a disk of 256 KiB needs root and mount")
    yield disk
    subprocess.run(["umount", disk], check=True)


def test_a_bundle_that_does_not_fit(tiny_disk, make_bundle):
    store = open_store(tiny_disk / "store")
    small = publish_bundle(store, make_bundle("small"), ["a"]).digest
    with pytest.raises(StoreError, match="No space left on device; free space"):
        publish_bundle(store, make_bundle("big", weights_bin=bytes(1 << 20)), ["a"])
    assert list(list_bundles(store)) == [small]
    assert list((tiny_disk / "store" / "tmp").iterdir()) == []


def test_files_of_killed_writers_go_after_a_day(tmp_path):
    folder = tmp_path / "store" / "tmp"
    folder.mkdir(parents=True)
    for name, age_s in (("object-old", 25 * 3600), ("object-new", 3600), ("work-old", 25 * 3600)):
        (folder / name).write_bytes(b"half")
        os.utime(folder / name, (time.time() - age_s,) * 2)
    DirectoryStore(tmp_path / "store")
    assert sorted(path.name for path in folder.iterdir()) == ["object-new", "work-old"]


def test_a_blob_that_is_used_again_is_young_again(tmp_path):
    store = DirectoryStore(tmp_path)
    digest = put_blob(store, b"kernel")
    path = tmp_path / "blobs" / digest[:2] / digest
    os.utime(path, (0, 0))
    put_blob(store, b"kernel")
    assert time.time() - path.stat().st_mtime < 60


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "store").write_text("")
    with pytest.raises(OptionError, match="is a file; a store is a folder"):
        open_store(tmp_path / "store")
    with pytest.raises(
        StoreError, match=r"cannot write .*Not a directory|cannot write .*File exists"
    ):
        put_blob(open_store(tmp_path / "store" / "below"), b"kernel")


@pytest.mark.parametrize("write", ["{}", "file://{}"])
def test_addresses_of_folders(tmp_path, write):
    store = open_store(write.format(tmp_path / "a store".replace(" ", "-")))
    put_blob(store, b"kernel")
    assert (tmp_path / "a-store" / "blobs").is_dir()


def test_s3_without_boto3_says_what_to_install(tmp_path):
    code = (
        "import sys; sys.modules['boto3'] = None\n"
        "from collage.store import open_store\n"
        "open_store(sys.argv[1])\n"
        "from collage.cli import main\n"
        "sys.exit(main(['aliases', 's3://bucket/prefix']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "pip install 'collage[s3]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_needs_no_boto3_and_no_compiler(tmp_path):
    code = (
        "import sys\n"
        "from collage.store import open_store\n"
        "import collage.store.bundles, collage.store.gc\n"
        "open_store(sys.argv[1])\n"
        "print(sorted({'boto3', 'botocore', 'pydantic', 'onnx', 'tvm', 'rich'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "[]\n", done.stderr
