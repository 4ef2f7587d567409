"""The cost of a kernel call is measured in an image that has no compiler."""

import os
import subprocess
import sys

PROGRAM = (
    "from collage.measure.call_overhead import cpu_dispatch_overhead_s; "
    "print(cpu_dispatch_overhead_s())"
)


def test_it_needs_no_compiler():
    environment = {**os.environ, "PATH": "/nonexistent"}
    environment.pop("CC", None)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert 0 <= float(done.stdout) < 1e-3
