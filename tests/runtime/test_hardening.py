"""Native code is linked and compiled with what a modern loader and compiler have against overflows."""

import subprocess
from pathlib import Path

import numpy as np
from onnx.helper import make_node as node

from collage.assemble import FunctionPlan, PlannedKernel, assemble
from collage.backends.base import BuildContext
from collage.backends.common.c_compiler import build, compiler
from collage.backends.registry import available_backends
from collage.frontend.region import region_values
from collage.runtime.plugin import LIBRARY_FOLDER
from tests.frontend.build import floats, imported, model
from tests.runtime import executables
from tests.runtime.elf import Protection, read_protection


def assert_protected(file: Path) -> Protection:
    protection = read_protection(file)
    assert protection.binds_now
    assert protection.has_relro
    assert not protection.stack_executes
    return protection


def test_the_plug_in_is_protected() -> None:
    protection = assert_protected(LIBRARY_FOLDER / "libcollage_runtime.so")
    assert "__stack_chk_fail" in protection.strings
    assert any(name.endswith("_chk") for name in protection.strings)  # _FORTIFY_SOURCE


def test_kernels_in_c_are_protected(tmp_path: Path) -> None:
    code = 'void puts(const char*); int collage_kernel(void) { puts(""); return 0; }'
    file = tmp_path / "kernel.so"
    file.write_bytes(build(compiler(), (), code))
    assert_protected(file)


def test_an_unprotected_library_is_recognised(tmp_path: Path) -> None:
    file = tmp_path / "plain.so"
    subprocess.run(
        [
            "cc",
            "-shared",
            "-fPIC",
            "-x",
            "c",
            "-",
            "-o",
            file,
            "-Wl,-z,lazy,-z,norelro,-z,execstack",
        ],
        input=b"int nothing(void) { return 0; }",
        check=True,
    )
    protection = read_protection(file)
    assert not protection.binds_now
    assert not protection.has_relro
    assert protection.stack_executes


def test_executables_are_protected(tmp_path: Path) -> None:
    relu = model([node("Relu", ["x"], ["y"])], {"x": ("float32", (1, 8))}, ["y"])
    function = imported(relu, tmp_path)
    (backend,) = available_backends(("onnxruntime",))
    kernel = backend.compile(function, 1, BuildContext(1))
    planned = PlannedKernel(1, "onnxruntime", kernel, *region_values(function, 1))
    assemble([FunctionPlan(function, (planned,))], 1, tmp_path / "model.so")
    assert_protected(tmp_path / "model.so")
    x = floats(1, 8)
    (y,) = executables.run_saved(tmp_path / "model.so", x)
    np.testing.assert_array_equal(y, np.maximum(x, 0))
