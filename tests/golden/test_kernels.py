"""What the plug-in reads: kinds of kernels, their blobs, global functions, symbols of executables."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import tvm_ffi

from collage.assemble import FunctionPlan, PlannedKernel
from collage.backends.base import BuildContext, PluginKernel
from collage.backends.common.c_source import CSourceBackend
from collage.backends.registry import all_backends
from collage.errors import BackendError
from collage.frontend.region import region_values
from collage.measure.callable_kernel import BlobKernel
from collage.measure.kernel_file import load_kernel, save_kernel
from collage.rules.pattern import op
from collage.runtime.blob import pack, unpack
from collage.runtime.plugin import load_plugin
from tests.support.golden import check_golden
from tests.support.shapes import shape_of

REGIONS = {
    "blocked": [0, 1], "onednn": [0, 1], "onnxruntime": [0, 1], "openvino": [0, 1],
    "winograd": [0, 1],
}  # fmt: skip
"""A convolution with relu: every backend of the processor whose kernels have blobs takes it."""
OWN_KERNELS = {"blocked", "winograd"}
"""Backends whose kernels need no vendor's library."""


class RectifierBackend(CSourceBackend):
    """Relu in C."""

    name = "rectifier"
    patterns = {"relu": op("Relu")}
    flags = ("-O1",)

    def source(self, region, threads):
        size = region.outputs[0].size
        return f"for (int i = 0; i < {size}; ++i) out0[i] = in0[i] > 0 ? in0[i] : 0;"


def nodes_of(region):
    return sum(1 << index for index in region)


def described(kernel):
    """Kind and header of a kernel; tensors by their types alone, since they hold libraries' own formats."""
    header, tensors = unpack(kernel.blob)
    return {
        "kind": kernel.kind,
        "allocates": kernel.allocates,
        "header": shape_of({name: one for name, one in header.items() if name != "tensors"}),
        "tensor": sorted(header["tensors"][0]) if tensors else [],
    }


@pytest.mark.parametrize("name", REGIONS)
def test_kernels_of_backends(example, name):
    (backend,) = (one for one in all_backends() if one.name == name)
    if reason := backend.availability().reason:
        pytest.skip(reason)
    kernel = backend.compile(example, nodes_of(REGIONS[name]), BuildContext(1), backend.variants[0])
    assert isinstance(kernel, PluginKernel)
    assert kernel.libraries == (frozenset() if name in OWN_KERNELS else {name})
    check_golden(f"kernel_{name}.json", described(kernel))


def test_kernels_from_c(example):
    try:
        kernel = RectifierBackend().compile(example, 1 << 1, BuildContext(1))
    except BackendError as error:
        pytest.skip(str(error))
    check_golden("kernel_c_source.json", described(kernel))


def test_bytes_of_a_blob():
    blob = pack(
        {"threads": 2, "name": "kernel", "list": [1.5, None, True]},
        [np.arange(3, dtype=np.int32), np.ones((2, 2), np.float32)],
    )
    check_golden("blob.txt", "\n".join(blob[at : at + 32].hex() for at in range(0, len(blob), 32)))


def test_files_of_kernels(tmp_path):
    file = tmp_path / "kernel"
    kernel = PluginKernel("example", b"blob", allocates=True, libraries=frozenset())
    save_kernel(kernel, 1, 0.5, file)
    assert load_kernel(file) == (BlobKernel("example", b"blob", allocates=True), 0.5)
    check_golden("kernel_file.txt", file.read_text())


def test_functions_of_the_plug_in():
    load_plugin()
    names = tvm_ffi.registry.list_global_func_names()
    check_golden(
        "plugin.json",
        sorted(name for name in names if name.startswith("collage.") or "collage_kernel" in name),
    )


def test_kinds_of_the_plug_in():
    """The plug-in refuses an unknown kind with the list of those that it has."""
    load_plugin()
    with pytest.raises(ValueError, match="none-such") as error:
        tvm_ffi.get_global_func("collage.create_module")("none-such", "symbol", pack({}, []))
    known = str(error.value).splitlines()[0].rpartition(": ")[2]
    check_golden("kinds.json", known.split(", "))


def test_symbols_of_an_executable(example):
    kernel = PluginKernel("example", b"", libraries=frozenset())
    planned = []
    for nodes, backend in (([0, 1], "onednn"), ([2], "tvm-cuda")):
        inputs, outputs = region_values(example, nodes_of(nodes))
        planned.append(PlannedKernel(nodes_of(nodes), backend, kernel, inputs, outputs))
    plan = FunctionPlan(example, tuple(planned))
    named = FunctionPlan(SimpleNamespace(name="main_1"), plan.kernels)
    check_golden("symbols.json", {"main": list(plan.symbols), "main_1": list(named.symbols)})


def test_the_function_of_a_model(example):
    check_golden("function.json", json.dumps({"function": example.name}))
