"""The real cuDNN has engines for the rules' candidates: `make cuda-check` installs its wheel, without a GPU.

cuDNN looks up the driver (and cuBLASLt) while it plans, and calls neither for a described device. If they
are missing, stub libraries with the same names replace them.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from collage.backends.nvidia.libraries import driver_reason
from collage.runtime.plugin import library_path, library_reason

ROOT = Path(__file__).parents[3]
CASES = Path(__file__).parent / "real_cudnn.py"
SPECIAL = (
    "int cuDriverGetVersion(int* v) { *v = 13000; return 0; } int cuInit(unsigned f) { return 0; }"
)
VERSION = "unsigned long cublasLtGetVersion(void) { return 130000; }"

missing = [name for name in ("cudnn", "nvrtc") if library_reason(name)]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(missing), reason=f"no {', '.join(missing)}: make cuda-check installs it"
    ),
]


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory):
    """Return a folder with stubs of the driver and cuBLASLt, as far as they are missing."""
    folder = tmp_path_factory.mktemp("stand_ins")
    text = b"\0".join(file.read_bytes() for file in library_path("cudnn").parent.glob("*.so.9"))
    if driver_reason():
        make_library(folder / "libcuda.so.1", names(text, rb"cu[A-Z]\w+"), SPECIAL)
    if library_reason("cublaslt"):
        make_library(folder / "libcublasLt.so.13", names(text, rb"cublasLt[A-Z]\w+"), VERSION)
    return folder


def names(text, pattern):
    matches = re.findall(rb"\0(" + pattern + rb")(?=\0)", text)
    return sorted({match.decode() for match in matches})


def make_library(file, functions, special):
    own = set(re.findall(r"(\w+)\(", special))
    stubs = [f"int {name}(void) {{ return 3; }}" for name in functions if name not in own]
    source = file.with_suffix(".c")
    source.write_text("\n".join([special, *stubs]))
    subprocess.run(
        ["gcc", "-w", "-shared", "-fPIC", str(source), f"-Wl,-soname,{file.name}", "-o", str(file)],
        check=True,
    )


def test_the_real_cudnn_has_an_engine_for_every_candidate(stand_ins):
    path = os.pathsep.join(filter(None, (str(stand_ins), os.environ.get("LD_LIBRARY_PATH"))))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(CASES)], cwd=ROOT,
        env={**os.environ, "LD_LIBRARY_PATH": path}, capture_output=True, text=True, check=False,
        timeout=550,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert " passed" in done.stdout
