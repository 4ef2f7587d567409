"""A hostile model is refused with a reason, within the memory and the time that are set for it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from collage.errors import ModelError, OptionError
from collage.frontend.isolated_import import guarded_import
from collage.import_limits import MEMORY, NODES, SECONDS, ImportLimits, import_limits
from collage.settings import unknown_variables
from tests.frontend.hostile_models import HOSTILE, add_y, doubling_bomb, nested_functions

GIB = 1 << 30


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """What compiling each of the models said, by name; all in one new process, whose memory is not ours."""
    command = [
        sys.executable,
        "-m",
        "tests.frontend.hostile_compiles",
        tmp_path_factory.mktemp("hostile"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, (len(outcomes), done.stderr[-2000:])
    return {outcome["name"]: outcome for outcome in outcomes}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_model_is_refused(answers, name):
    answer = answers[name]
    assert answer["code"] == 2, answer
    assert HOSTILE[name][0] in answer["err"]
    assert answer["model"] in answer["err"]
    assert "Traceback" not in answer["err"] + answer["out"]
    assert answer["peak_bytes"] < 2 * GIB
    assert not answer["left"]


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
    imported_model = guarded_import(path, work_dir=tmp_path / "work")
    assert [function.name for function in imported_model.functions] == ["main"]
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
