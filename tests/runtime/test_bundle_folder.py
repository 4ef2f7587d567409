"""What is verified is what is opened, whatever happens to the folder and its files meanwhile."""

import gc
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tvm import relax

from collage.errors import BundleError
from collage.runtime import loader
from collage.runtime.bundle_folder import BundleFolder
from collage.runtime.loader import load
from collage.store.atomic_folder import exchange
from tests.runtime import executables
from tests.runtime.conftest import write_manifest
from tests.support.keys import make_key

SHAPE = (1, 8)
X = np.arange(8, dtype="float32").reshape(SHAPE)


def make_bundle(folder: Path, number: float) -> Path:
    """A bundle of y = x + number."""
    folder.mkdir()
    x = relax.Var("x", relax.TensorType(SHAPE, "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.add(x, relax.const(number, "float32")))
        builder.emit_func_output(result)
    executables.export(builder.get(), folder / "model.so")
    np.savez(folder / "golden.npz", **{"main/input/x": X, "main/output/y": X + np.float32(number)})
    tensors = [{"name": name, "shape": list(SHAPE), "dtype": "float32"} for name in "xy"]
    functions = [{"function": "main", "inputs": tensors[:1], "outputs": tensors[1:]}]
    write_manifest(folder, functions=functions, libraries={})
    return folder


@pytest.fixture(scope="module")
def built_bundles(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    return [make_bundle(folder / str(number), number) for number in (1, 2)]


@pytest.fixture
def bundles(built_bundles, tmp_path):
    """Two bundles, of x + 1 and x + 2, for this test alone."""
    copies = []
    for folder in built_bundles:
        copy = tmp_path / folder.name
        copy.mkdir()
        for file in folder.iterdir():
            (copy / file.name).write_bytes(file.read_bytes())
        copies.append(copy)
    return copies


@pytest.fixture
def after_verifying(monkeypatch):
    """Have something happen when everything was verified and nothing is loaded yet."""

    def let(happen: Callable[[], object]) -> None:
        plain = loader.verify_machine
        monkeypatch.setattr(loader, "verify_machine", lambda manifest: (plain(manifest), happen()))

    return let


def added(bundle: loader.LoadedBundle) -> float:
    """The number that the bundle's code adds."""
    (number,) = set((bundle.run({"x": X})["y"] - X).ravel())
    return number


def test_an_exchanged_folder_gives_what_was_verified(bundles, after_verifying):
    first, second = bundles
    after_verifying(lambda: exchange(first, second))
    loaded = load(first)
    assert added(loaded) == 1
    loaded.check()  # with the golden data of the first, too


def test_an_exchanged_file_gives_what_was_verified(bundles, after_verifying):
    first, second = bundles
    after_verifying(lambda: os.replace(second / "model.so", first / "model.so"))
    assert added(load(first)) == 1


def test_a_copy_is_of_what_was_verified(bundles):
    loaded = load(bundles[0])
    exchange(*bundles)
    copy = loaded.copy()
    assert added(copy) == added(loaded) == 1
    copy.check()


def test_a_removed_folder_keeps_its_golden_data(bundles):
    loaded = load(bundles[0])
    for file in bundles[0].iterdir():
        file.unlink()
    loaded.check()


def test_a_file_that_is_changed_in_place_is_refused(bundles, after_verifying):
    def append() -> None:
        with (bundles[0] / "model.so").open("ab") as file:
            file.write(b"\0")

    after_verifying(append)
    with pytest.raises(BundleError, match=r"model\.so was changed while it was read"):
        load(bundles[0])


def test_a_file_writable_by_others_is_loaded_from_a_copy(bundles, after_verifying):
    file, second = bundles[0] / "model.so", bundles[1] / "model.so"
    file.chmod(0o666)
    assert file.stat().st_size == second.stat().st_size  # so that all of it is overwritten

    def overwrite() -> None:
        with file.open("r+b") as stream:
            stream.write(second.read_bytes())

    after_verifying(overwrite)
    assert added(load(bundles[0])) == 1


def test_golden_data_changed_in_place_is_refused(bundles):
    loaded = load(bundles[0])
    with (bundles[0] / "golden.npz").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\1")
    with pytest.raises(BundleError, match=r"golden"):
        loaded.check()


def test_a_descriptor_used_again_is_another_library(bundles):
    values = []
    for folder in bundles * 2:
        values.append(added(load(folder)))
        gc.collect()
    assert values == [1, 2, 1, 2]


def test_loading_leaves_no_descriptor_open(bundles):
    load(bundles[0])
    gc.collect()
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        load(bundles[0])
    with pytest.raises(BundleError):
        load(bundles[0] / "absent")
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == len(before)


def _link(file: Path) -> None:
    target = file.rename(file.with_name("kept"))
    file.symlink_to(target)


def _pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def _folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize("name", ["manifest.json", "model.so"])
@pytest.mark.parametrize(
    ("replace", "message"),
    [(_link, "is a link"), (_pipe, "no regular file"), (_folder, "no regular file")],
)
def test_links_pipes_and_folders_are_no_files(bundles, name, replace, message):
    replace(bundles[0] / name)
    with pytest.raises(BundleError, match=message):
        load(bundles[0])


@pytest.mark.parametrize("name", ["", ".", "..", "../1/model.so", "/etc/passwd", "a\0b"])
def test_a_name_has_no_folder_in_it(bundles, name):
    with pytest.raises(OSError, match="no name of a file"):
        BundleFolder(bundles[0]).read(name)


def test_nothing_is_parsed_before_the_signature(bundles, tmp_path):
    key = make_key(tmp_path)
    (bundles[0] / "manifest.json").write_text("{")
    with pytest.raises(BundleError, match="not signed"):
        load(bundles[0], [key.public])
