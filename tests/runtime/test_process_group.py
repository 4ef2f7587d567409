"""Start of child processes, and the tails of their output."""

import io
import os
import subprocess
import tempfile

import pytest

from collage.runtime.process_group import end_group, last_line, output_tail, start_group


def test_a_child_leads_its_own_group_with_its_environment(tmp_path):
    (tmp_path / "child.py").write_text(
        "import os, sys\n"
        "print(sys.argv[1], os.getpgid(0) == os.getpid(), 'HOME' in os.environ)\n"
        "print(repr(sys.stdin.read()))\n"
        "os.write(int(sys.argv[2]), b'kept open')\n"
    )
    reading, writing = os.pipe()
    with tempfile.TemporaryFile() as output:
        process = start_group(
            "child",
            ["first", str(writing)],
            environment={"PYTHONPATH": str(tmp_path)},
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=(writing,),
        )
        os.close(writing)
        assert os.read(reading, 100) == b"kept open"
        assert end_group(process, patience_s=60.0) == 0
        os.close(reading)
        lines = output_tail(output)
    assert lines[0].split() == ["first", "True", "False"]
    assert lines[1] == "''"


@pytest.mark.parametrize(
    ("output", "lines"),
    [
        (b"", []),
        (b"\n \n", []),
        (b"one\n  two \n\n", ["one", "two"]),
        (b"bad \xff byte\n", ["bad \ufffd byte"]),
        (b"x" * 10_000 + b"\nend", ["x" * 4092, "end"]),
    ],
)
def test_the_tail_of_an_output_has_no_empty_lines(output, lines):
    assert output_tail(io.BytesIO(output)) == lines
    assert last_line(io.BytesIO(output)) == (lines[-1] if lines else "")


def test_a_long_last_line_is_shortened():
    assert last_line(io.BytesIO(b"start\n" + b"y" * 1000)) == "y" * 300
