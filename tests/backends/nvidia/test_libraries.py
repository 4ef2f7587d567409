"""Reasons name the missing library; present libraries are opened."""

import shutil

import pytest

from collage.backends.base import Availability, BuildContext, PluginKernel
from collage.backends.nvidia import libraries
from collage.backends.nvidia.cudnn import CudnnBackend
from collage.backends.nvidia.libraries import Need, cuda_availability, driver_reason, open_library
from collage.backends.nvidia.on_host import OnHostBackend
from collage.backends.registry import all_backends, available_backends
from collage.cli import main
from collage.errors import OptionError
from collage.options import Options
from collage.runtime.blob import unpack
from tests.backends.regions import convolutions

NAMES = (
    "tvm-cuda",
    "cublas",
    "cudnn",
    "cutlass",
    "tensorrt",
    "onnxruntime-cuda",
    "onnxruntime-host",
)
without_gpu = pytest.mark.skipif(driver_reason() == "", reason="this machine has a GPU")


def test_a_library_of_the_loader_is_found_and_has_its_version():
    opened = open_library(Need("the C library", ("libc.so.6",), "-", "gnu_get_libc_release"))
    assert not opened.reason
    assert opened.path == "libc.so.6"


def test_a_missing_library_names_its_files_and_what_to_install():
    need = Need("cuFoo", ("libcufoo.so.13", "libcufoo.so.12"), "pip install cufoo")
    opened = open_library(need)
    assert opened.reason == (
        "no cuFoo: libcufoo.so.13 or libcufoo.so.12 cannot be opened: pip install cufoo"
    )


def test_a_file_that_is_no_library_is_reported(tmp_path, monkeypatch):
    (tmp_path / "libcubar.so.1").write_text("not ELF")
    monkeypatch.setattr(libraries, "wheel_folders", lambda package: iter([tmp_path]))
    reason = open_library(Need("cuBar", ("libcubar.so.1",), "pip install cubar")).reason
    assert "invalid ELF header" in reason or "file too short" in reason


def test_all_reasons_are_given_at_once():
    needs = [Need(name, (f"lib{name}.so.9",), f"pip install {name}") for name in ("cux", "cuy")]
    reason = cuda_availability(needs, [Availability("no nvcc")]).reason
    assert [part in reason for part in ("no cux", "no cuy", "no nvcc")] == [True] * 3


@without_gpu
@pytest.mark.parametrize("name", NAMES)
def test_without_a_gpu_the_reason_starts_with_the_driver(name):
    (backend,) = [candidate for candidate in all_backends() if candidate.name == name]
    assert backend.device == "cuda"
    assert backend.availability().reason.startswith(("no driver: libcuda.so.1", "the driver ("))


@without_gpu
def test_cuda_backends_are_never_chosen_for_the_cpu(capsys):
    assert not {backend.name for backend in available_backends(None)} & set(NAMES)
    with pytest.raises(OptionError, match="runs on cuda, not on cpu"):
        available_backends(("cublas",))
    with pytest.raises(OptionError, match="cannot be used here: no driver"):
        available_backends(("cublas",), "cuda")
    with pytest.raises(OptionError, match="unknown device 'tpu'"):
        Options(device="tpu")


@without_gpu
def test_a_compile_for_a_gpu_says_why_not(tmp_path, capsys):
    model = tmp_path / "model.onnx"
    shutil.copy(_any_model(tmp_path), model)
    assert main(["compile", str(model), "--device", "cuda", "--cache-dir", str(tmp_path)]) == 2
    assert "no backend is available" in capsys.readouterr().err


def _any_model(tmp_path):
    from tests.backends.regions import determinant

    (tmp_path / "made").mkdir()
    determinant(tmp_path / "made")
    return tmp_path / "made" / "model.onnx"


@pytest.mark.parametrize("present", [(), ("nvrtc", "nvrtc_builtins")])
def test_a_region_of_cudnn_names_the_compiler_of_its_engines(tmp_path, monkeypatch, present):
    monkeypatch.setattr(
        "collage.backends.nvidia.cudnn.library_reason",
        lambda name: "" if name in present else "absent",
    )
    kernel = CudnnBackend().compile(convolutions(tmp_path), 0b1, BuildContext(1))
    assert unpack(kernel.blob)[0]["libraries"] == list(present)
    assert kernel.libraries == {"cudnn", *present}


def test_a_region_on_the_host_needs_the_host_s_library(tmp_path):
    kernel = OnHostBackend().compile(convolutions(tmp_path), 0b1, BuildContext(1))
    assert kernel.libraries == {"onnxruntime"}


def test_a_plug_in_kernel_without_its_libraries_is_refused():
    with pytest.raises(TypeError, match="libraries"):
        PluginKernel("shared_library", b"")
