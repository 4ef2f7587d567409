"""A hostile model is refused with a reason, within the memory and the time that are set for it."""

import resource
from pathlib import Path

import pytest

from collage.cli import main
from collage.errors import ModelError, OptionError
from collage.frontend import survey
from collage.frontend.guarded import guarded_import
from collage.import_limits import MEMORY, NODES, SECONDS, ImportLimits, import_limits
from collage.settings import unknown_variables
from tests.frontend.hostile_models import HOSTILE, add_y, doubling_bomb, nested_functions

GIB = 1 << 30


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> int:
    """The most memory that this process had since the reset, and a child ever had."""
    lines = Path("/proc/self/status").read_text().splitlines()
    own = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024
    return own + resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_model_is_refused(tmp_path, capfd, monkeypatch, name):
    if name == "loop_without_end":
        monkeypatch.setenv(SECONDS, "3")
    if name == "millions_of_empty_metadata":
        monkeypatch.setattr(survey, "MAX_MESSAGES", 100_000)
    words, build = HOSTILE[name]
    (tmp_path / "model.onnx").write_bytes(build())
    reset_peak()
    command = ["compile", tmp_path / "model.onnx", "-o", tmp_path / "out", "--cache-dir", tmp_path,
               "--backends", "onnxruntime", "--effort", "quick", "--quiet"]  # fmt: skip
    assert main([*map(str, command)]) == 2
    said = capfd.readouterr()
    assert words in said.err
    assert str(tmp_path / "model.onnx") in said.err
    assert "Traceback" not in said.err + said.out
    assert peak_bytes() < 2 * GIB
    assert not (tmp_path / "out").exists()


def written(folder: Path, content: bytes) -> Path:
    (folder / "model.onnx").write_bytes(content)
    return folder / "model.onnx"


def test_what_the_operator_allows_is_read(tmp_path, monkeypatch):
    path = written(tmp_path, nested_functions())
    monkeypatch.setenv(NODES, "200000")
    monkeypatch.setenv(SECONDS, "1")
    with pytest.raises(ModelError, match=SECONDS):
        guarded_import(path, work_dir=tmp_path)
    monkeypatch.setenv(NODES, "100")
    with pytest.raises(ModelError, match="131072 nodes"):
        guarded_import(path, work_dir=tmp_path)


def test_a_smaller_allowance_of_memory_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv(MEMORY, "300MiB")
    with pytest.raises(ModelError, match=r"more than 0.293 GiB .* set COLLAGE_IMPORT_MEMORY"):
        guarded_import(written(tmp_path, doubling_bomb()), work_dir=tmp_path)


def test_a_child_that_imports_has_no_secrets_and_leaves_no_files(tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter22")
    path = written(tmp_path, add_y().SerializeToString())
    found = guarded_import(path, work_dir=tmp_path / "work")
    assert [one.name for one in found.functions] == ["main"]
    assert [file.name for file in (tmp_path / "work").iterdir()] == ["main.simplified.onnx"]


@pytest.mark.parametrize(
    ("name", "value"),
    [(MEMORY, "much"), (MEMORY, "5"), (SECONDS, "-1"), (NODES, "0"), (NODES, "1e3")],
)
def test_a_limit_that_is_none_is_refused(name, value):
    with pytest.raises(OptionError, match=name):
        import_limits({name: value})


def test_limits_are_settings_that_every_program_knows():
    assert import_limits({MEMORY: "4GiB", NODES: "7"}) == ImportLimits(4 << 30, 45.0, 7)
    assert unknown_variables((), {MEMORY: "4GiB", SECONDS: "9", NODES: "7"}) == []
    assert unknown_variables((), {"COLLAGE_IMPORT_MEMROY": "4GiB"}) != []
