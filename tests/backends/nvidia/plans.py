"""Plans for a GPU: assembled, started and compared with the whole model, on a real or a simulated one."""

import hashlib
import json
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
from onnx import helper

from collage.assemble import FunctionPlan, PlannedKernel, assemble
from collage.backends.base import BuildContext
from collage.backends.registry import known_backends
from collage.frontend.inputs import random_inputs
from collage.frontend.region import region_values
from collage.rules import single_backend_partition
from collage.runtime.loader import LoadedBundle, load
from collage.runtime.target import Target
from collage.runtime.virtual_machine import start_machine
from tests.backends.regions import _function, _weight

BACKENDS = {backend.name: backend for backend in known_backends(None, "cuda")}


def windows(path):
    """Pooling both ways, a convolution with a group, a stride and a scale of its channels, a product."""
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], pads=[1, 1, 1, 1], strides=[2, 2], group=2),
        helper.make_node("Mul", ["a", "f"], ["b"]),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("MaxPool", ["c"], ["d"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("AveragePool", ["d"], ["e"], kernel_shape=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("GlobalAveragePool", ["e"], ["g"]),
        helper.make_node("Flatten", ["g"], ["h"]),
        helper.make_node("Gemm", ["h", "w2", "b2"], ["i"]),
        helper.make_node("Softmax", ["i"], ["y"], axis=-1),
    ]
    weights = [_weight("w1", 8, 2, 3, 3), _weight("f", 1, 8, 1, 1), _weight("w2", 8, 6)]
    sizes = {"x": (1, 4, 9, 9)}, {"y": (1, 6), "d": (1, 8, 5, 5)}
    return _function(path, nodes, *sizes, [*weights, _weight("b2", 6)])


def plan_of(function, backend, variant=None):
    """Return the backend's own plan, with the remaining nodes in ONNX Runtime on the host, in order."""
    parts = [
        (candidate, backend) for candidate in single_backend_partition(function, backend, variant)
    ]
    covered = sum(candidate.inside for candidate, _ in parts)
    host = BACKENDS["onnxruntime-host"]
    regions = [(candidate.inside, by, candidate.variant) for candidate, by in parts]
    regions += [
        (1 << i, host, "") for i in range(len(function.graph)) if not covered >> i & 1
    ]  # fmt: skip
    computed, planned = {*function.graph.inputs}, []
    while regions:
        nodes, by, chosen = next(
            candidate
            for candidate in regions
            if computed.issuperset(region_values(function, candidate[0])[0])
        )
        regions.remove((nodes, by, chosen))
        inputs, outputs = region_values(function, nodes)
        kernel = by.compile(function, nodes, BuildContext(1), chosen)
        planned.append(PlannedKernel(nodes, by.name, kernel, inputs, outputs))
        computed.update(outputs)
    return FunctionPlan(function, tuple(planned))


def run_plan(plan, folder, calls=3):
    """Assemble, start, and return inputs and the outputs of every call, each on other inputs."""
    file = Path(tempfile.mkdtemp(dir=folder)) / "plan.so"  # a name is loaded once a process
    assemble([plan], 1, file, Target.CUDA)
    run = start_machine(file, 1, Target.CUDA)["main"]
    import tvm_ffi

    results = []
    for seed in range(calls):
        inputs = random_inputs(plan.function, seed)
        outputs = run(*(tvm_ffi.from_dlpack(np.array(array)) for array in inputs.values()))
        several = [outputs] if hasattr(outputs, "shape") else list(outputs)
        results.append((inputs, [np.array(np.from_dlpack(array)) for array in several]))
    return results


def check(plan, folder, rtol=1e-4, atol=1e-5):
    """Compare three calls with ONNX Runtime on the whole model."""
    session = onnxruntime.InferenceSession(str(plan.function.simplified))
    for inputs, outputs in run_plan(plan, folder):
        expected = session.run(list(plan.function.graph.outputs), inputs)
        for value, reference in zip(outputs, expected, strict=True):
            np.testing.assert_allclose(value, reference, rtol=rtol, atol=atol)


def bundle_of(plan, folder, capability="90") -> LoadedBundle:
    """Assemble the plan as a loadable bundle, and load it."""
    folder = Path(tempfile.mkdtemp(dir=folder))
    assemble([plan], 1, folder / "model.so", Target.CUDA)
    types = plan.function.graph.types

    def tensors(names):
        return [
            {"name": name, "shape": list(types[name].shape), "dtype": types[name].dtype}
            for name in names
        ]

    graph = plan.function.graph
    manifest = {
        "schema_version": 3, "gate": [], "executable": "model.so", "threads": 1,
        "functions": [{"function": "main", "inputs": tensors(graph.inputs),
                       "outputs": tensors(graph.outputs)}],
        "cpu": {"model": "any", "features": []}, "libraries": {}, "device": "cuda",
        "compute_capability": capability,
        "files": {"model.so": hashlib.sha256((folder / "model.so").read_bytes()).hexdigest()},
    }  # fmt: skip
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return load(folder)
