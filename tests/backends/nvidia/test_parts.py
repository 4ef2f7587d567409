"""Requirements of a toolchain for builds, for runs, and for both."""

import pytest

from collage.backends import registry
from collage.backends.base import Availability, BackendRole
from collage.backends.nvidia import toolchain
from collage.backends.registry import (
    available_backends,
    known_backends,
    names_on,
)
from collage.errors import OptionError

COMPILED = {"tvm-cuda", "cutlass"}


@pytest.fixture
def machine(monkeypatch):
    """Return a machine with the named parts: "driver", "nvcc"."""

    def make(*has):
        driver = "" if "driver" in has else "no driver"
        nvcc = Availability("", {"nvcc": "13"}) if "nvcc" in has else Availability("no nvcc")
        for module in ("tvm_cuda", "cutlass"):
            monkeypatch.setattr(f"collage.backends.nvidia.{module}.nvcc_availability", lambda: nvcc)
        monkeypatch.setattr(
            "collage.backends.nvidia.cutlass.cutlass_availability", lambda: Availability("")
        )
        driver_part = Availability(driver, {} if driver else {"driver": "13.0", "libcudart": "13"})
        monkeypatch.setattr(
            toolchain, "cuda_availability",
            lambda needs, parts=(): toolchain.joined([driver_part, *parts]),
        )  # fmt: skip
        return {
            backend.name: backend
            for backend in known_backends(["cublas", "cudnn", *sorted(COMPILED)], "cuda")
        }

    return make


def usable(backends, part):
    return {name for name, backend in backends.items() if backend.available_for(part).available}


@pytest.mark.parametrize(
    ("has", "builds", "runs", "complete"),
    [
        ((), {"cublas", "cudnn"}, set(), set()),
        (("nvcc",), {"cublas", "cudnn"} | COMPILED, set(), set()),
        (("driver",), {"cublas", "cudnn"}, {"cublas", "cudnn"} | COMPILED, {"cublas", "cudnn"}),
        (("driver", "nvcc"), *[{"cublas", "cudnn"} | COMPILED] * 3),
    ],
)
def test_a_builder_needs_no_driver_and_who_measures_no_compiler(
    machine, has, builds, runs, complete
):
    backends = machine(*has)
    assert usable(backends, BackendRole.BUILD) == builds
    assert usable(backends, BackendRole.RUN) == runs
    assert usable(backends, BackendRole.ALL) == complete


def test_each_part_is_in_the_identity_of_the_whole(machine):
    for backend in machine("driver", "nvcc").values():
        full_identity = set(backend.identity.split()[1:])
        for part in BackendRole:
            assert {
                f"{k}={v}" for k, v in backend.available_for(part).libraries.items()
            } <= full_identity


def test_a_backend_of_another_machine_keeps_its_identity():
    (backend,) = known_backends(["cudnn"], "cuda")
    remote = backend.with_identity("cudnn driver=13.0 libcudnn=90000")
    assert remote.identity == "cudnn driver=13.0 libcudnn=90000"
    assert backend.identity != remote.identity


def test_what_can_be_built_here_is_asked_for_by_part(machine):
    assert [
        backend.name for backend in available_backends(["cudnn"], "cuda", BackendRole.BUILD)
    ] == ["cudnn"]
    machine()
    with pytest.raises(OptionError, match="backend cudnn cannot be used here: "):
        available_backends(["cudnn"], "cuda", BackendRole.RUN)


def test_each_device_takes_its_own_of_the_names():
    chosen = ("onednn", "cudnn", "collage.backends.cpu.onnxruntime:OnnxRuntimeBackend")
    assert names_on(chosen, "cpu") == (chosen[0], chosen[2])
    assert names_on(chosen, "cuda") == ("cudnn",)
    assert names_on(None, "cuda") is None
    with pytest.raises(
        OptionError, match=r"none of the backends onednn runs on cuda; there are .*cudnn"
    ):
        names_on(("onednn",), "cuda")
    with pytest.raises(OptionError, match="unknown backend 'no-such'"):
        names_on(("no-such",), "cuda")


def test_groups_of_a_gpu_keep_sessions_host_and_libraries_apart():
    groups = {
        backend.name: backend.group
        for backend in registry.all_backends()
        if backend.device == "cuda"
    }
    assert groups["tensorrt"] == groups["onnxruntime-cuda"] == "graph"
    assert groups["onnxruntime-host"] == "host"
    assert groups["cudnn"] == groups["cublas"] == groups["cutlass"] == "library"
    assert groups["tvm-cuda"] == "native"
