"""What a toolchain needs where it builds, where it runs, and where it does both."""

import pytest

from collage.backends import registry
from collage.backends.base import Availability, Part
from collage.backends.nvidia import toolchain
from collage.backends.registry import as_elsewhere, available_backends, known_backends, names_on
from collage.errors import OptionError

COMPILED = {"tvm-cuda", "cutlass"}


@pytest.fixture
def machine(monkeypatch):
    """A machine that has what is named: "driver", "nvcc"."""

    def make(*has):
        driver = "" if "driver" in has else "no driver"
        nvcc = Availability("", {"nvcc": "13"}) if "nvcc" in has else Availability("no nvcc")
        for module in ("tvm_cuda", "cutlass"):
            monkeypatch.setattr(f"collage.backends.{module}.nvcc_availability", lambda: nvcc)
        monkeypatch.setattr(
            "collage.backends.nvidia.cutlass.cutlass_availability", lambda: Availability("")
        )
        found = Availability(driver, {} if driver else {"driver": "13.0", "libcudart": "13"})
        monkeypatch.setattr(
            toolchain, "cuda_availability",
            lambda needs, others=(): toolchain.joined([found, *others]),
        )  # fmt: skip
        return {
            one.name: one for one in known_backends(["cublas", "cudnn", *sorted(COMPILED)], "cuda")
        }

    return make


def usable(found, part):
    return {name for name, one in found.items() if one.available_for(part).available}


@pytest.mark.parametrize(
    ("has", "builds", "runs", "both"),
    [
        ((), {"cublas", "cudnn"}, set(), set()),
        (("nvcc",), {"cublas", "cudnn"} | COMPILED, set(), set()),
        (("driver",), {"cublas", "cudnn"}, {"cublas", "cudnn"} | COMPILED, {"cublas", "cudnn"}),
        (("driver", "nvcc"), *[{"cublas", "cudnn"} | COMPILED] * 3),
    ],
)
def test_a_builder_needs_no_driver_and_who_measures_no_compiler(machine, has, builds, runs, both):
    found = machine(*has)
    assert usable(found, Part.BUILD) == builds
    assert usable(found, Part.RUN) == runs
    assert usable(found, Part.ALL) == both


def test_each_part_is_in_the_identity_of_the_whole(machine):
    for one in machine("driver", "nvcc").values():
        whole = set(one.identity.split()[1:])
        for part in Part:
            assert {f"{k}={v}" for k, v in one.available_for(part).libraries.items()} <= whole


def test_a_backend_of_another_machine_keeps_its_identity():
    (backend,) = known_backends(["cudnn"], "cuda")
    there = as_elsewhere(backend, "cudnn driver=13.0 libcudnn=90000")
    assert there.identity == "cudnn driver=13.0 libcudnn=90000"
    assert backend.identity != there.identity


def test_what_can_be_built_here_is_asked_for_by_part(machine):
    assert [one.name for one in available_backends(["cudnn"], "cuda", Part.BUILD)] == ["cudnn"]
    machine()
    with pytest.raises(OptionError, match="backend cudnn cannot be used here: "):
        available_backends(["cudnn"], "cuda", Part.RUN)


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
    groups = {one.name: one.group for one in registry.all_backends() if one.device == "cuda"}
    assert groups["tensorrt"] == groups["onnxruntime-cuda"] == "graph"
    assert groups["onnxruntime-host"] == "host"
    assert groups["cudnn"] == groups["cublas"] == groups["cutlass"] == "library"
    assert groups["tvm-cuda"] == "native"
