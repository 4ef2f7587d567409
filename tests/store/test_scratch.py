"""Temporary folders after kill -9."""

import signal
import subprocess
import sys

from collage.store.scratch import scratch_folder

OWNER = """
import sys, time
from pathlib import Path
from collage.store.scratch import scratch_folder
with scratch_folder(Path(sys.argv[1]), "compile-") as folder:
    (folder / "file").write_text("x")
    print(folder, flush=True)
    time.sleep(60)
"""


def test_a_new_scratch_folder_removes_only_abandoned_ones(tmp_path):
    (tmp_path / "blob-of-another-kind").mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as owner:
        folder = owner.stdout.readline().strip()
        with scratch_folder(tmp_path, "compile-") as ours:
            names = {entry.name for entry in tmp_path.iterdir()}
            assert len(names) == 3, "a folder in use was removed"
        assert not ours.exists()
        owner.send_signal(signal.SIGKILL)
    with scratch_folder(tmp_path, "compile-"):
        assert folder not in map(str, tmp_path.iterdir())
        assert (tmp_path / "blob-of-another-kind").is_dir()
