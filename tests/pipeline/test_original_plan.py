"""The original file as a plan: the very numbers of the framework, whatever the file looks like."""

from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from collage.backends.registry import available_backends
from collage.frontend import import_model
from collage.frontend.original_file import original_bytes
from collage.options import Options
from collage.pipeline.original_plan import OriginalFile
from collage.runtime.session import ExecutableSession
from collage.verify.benchmark_worker import KINDS
from collage.verify.plan_executable import function_signature

BOTH = ("onnxruntime", "openvino")


def saved(path, nodes, inputs, outputs, weights=None, ir_version=10, **fields):
    """Save a model; inputs and outputs are (name, type, shape)."""
    values = [
        [helper.make_tensor_value_info(*value) for value in tensors]
        for tensors in (inputs, outputs)
    ]
    weight_tensors = [
        numpy_helper.from_array(value, name) for name, value in (weights or {}).items()
    ]
    graph = helper.make_graph(nodes, "g", *values, weight_tensors)
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=ir_version)
    onnx.save(model, path, **fields)
    return path


def floats(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def two_inputs(path, **fields):
    """A product and a sum, with dimensions that are bound later; the second input is used first."""
    nodes = [
        helper.make_node("MatMul", ["b", "w"], ["p"]),
        helper.make_node("Add", ["p", "a"], ["y"]),
        helper.make_node("Softmax", ["y"], ["z"], axis=-1),
    ]
    inputs = [("a", TensorProto.FLOAT, [1, 24]), ("b", TensorProto.FLOAT, ["n", 16])]
    outputs = [("y", TensorProto.FLOAT, ["n", 24]), ("z", TensorProto.FLOAT, ["n", 24])]
    return saved(path, nodes, inputs, outputs, {"w": floats(16, 24)}, **fields)


def in_half(path):
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    inputs, outputs = [("x", TensorProto.FLOAT16, [4, 16])], [("y", TensorProto.FLOAT16, [4, 8])]
    return saved(path, nodes, inputs, outputs, {"w": floats(16, 8).astype(np.float16)})


def with_unknown_shape(path):
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("NonZero", ["r"], ["n"])]
    inputs, outputs = [("x", TensorProto.FLOAT, [4, 6])], [("n", TensorProto.INT64, [2, "k"])]
    return saved(path, nodes, inputs, outputs)


def weights_among_inputs(path):
    """As old exporters wrote it: the weight is an input with a default."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    inputs = [("w", TensorProto.FLOAT, [16, 8]), ("x", TensorProto.FLOAT, [4, 16])]
    outputs = [("y", TensorProto.FLOAT, [4, 8])]
    return saved(path, nodes, inputs, outputs, {"w": floats(16, 8)})


def in_other_files(path):
    return two_inputs(path, save_as_external_data=True, location="weights.bin", size_threshold=0)


def of_a_newer_format(path):
    return two_inputs(path, ir_version=onnx.IR_VERSION)


def with_outputs_of_no_node(path):
    """An input and a constant are outputs too."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    x, y = ("x", TensorProto.FLOAT, [4, 16]), ("y", TensorProto.FLOAT, [4, 8])
    mask = ("mask", TensorProto.FLOAT, [1, 64])
    outputs = [mask, y, ("c", TensorProto.FLOAT, [3])]
    return saved(path, nodes, [x, mask], outputs, {"w": floats(16, 8), "c": floats(3)})


def original(path, folder, names=BOTH, shapes=(), threads=1, **options):
    model = import_model(path, shapes=shapes, work_dir=folder / "work")
    session = SimpleNamespace(
        options=Options(**options),
        backends=available_backends(names),
        compatible_backends=available_backends(names),
        threads=threads,
        work_dir=folder / "work",
    )
    return OriginalFile(model, model.functions[0], session)


def draw(function):
    types = [(name, function.type_of(name)) for name in function.graph.inputs]
    return {
        name: floats(*tensor.shape, seed=seed).astype(tensor.dtype)
        for seed, (name, tensor) in enumerate(types)
    }


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("baseline", BOTH)
@pytest.mark.parametrize(
    ("make", "shapes"),
    [
        (two_inputs, ({"a": (1, 24), "b": (5, 16)},)),
        (in_other_files, ({"a": (1, 24), "b": (5, 16)},)),
        (of_a_newer_format, ({"a": (1, 24), "b": (5, 16)},)),
        (in_half, ()),
        (weights_among_inputs, ()),
    ],
    ids=lambda parameter: getattr(parameter, "__name__", ""),
)
def test_its_numbers_are_the_frameworks(tmp_path, make, shapes, baseline, threads):
    path = make(tmp_path / "m.onnx")
    original_file = original(path, tmp_path, shapes=shapes, threads=threads)
    plan = original_file.plans.assemble(baseline)
    assert plan.original == baseline
    feeds = draw(original_file.function)
    names = original_file.function.graph.outputs
    expected = KINDS[baseline](str(path), dict(feeds), threads).outputs(names)
    for kernel in (
        "",
        plan.kernel,
    ):  # through the virtual machine, as C++ programs do, and directly
        signature = function_signature(original_file.function, kernel)
        outputs = ExecutableSession(plan.path, (signature,), threads).run(feeds)
        for value, right in zip(outputs.values(), expected, strict=True):
            assert value.dtype == right.dtype
            np.testing.assert_array_equal(value, right)


def test_inputs_and_constants_as_outputs_are_returned(tmp_path):
    """ONNX Runtime does not write them into the memory that it is given."""
    path = with_outputs_of_no_node(tmp_path / "m.onnx")
    original_file = original(path, tmp_path)
    assert original_file.plans.baselines == {"onnxruntime"}
    plan = original_file.plans.assemble("onnxruntime")
    assert plan.kernel == "", "a direct call of the kernel would lack them"
    function = original_file.function
    session = ExecutableSession(plan.path, (function_signature(function, plan.kernel),), 1)
    for seed in (1, 2):
        feeds = {"x": floats(4, 16, seed=seed), "mask": floats(1, 64, seed=seed)}
        names = function.graph.outputs
        expected = KINDS["onnxruntime"](str(path), dict(feeds), 1).outputs(names)
        for value, right in zip(session.run(feeds).values(), expected, strict=True):
            np.testing.assert_array_equal(value, right)


def test_outputs_without_a_shape_are_made_by_the_framework(tmp_path):
    original_file = original(with_unknown_shape(tmp_path / "m.onnx"), tmp_path)
    assert original_file.plans.baselines == {"onnxruntime"}, (
        "OpenVINO's kernel writes into what it is given"
    )
    plan = original_file.plans.assemble("onnxruntime")
    signature = function_signature(original_file.function, plan.kernel)
    session = ExecutableSession(plan.path, (signature,), 1)
    for seed in range(2):
        feeds = {"x": floats(4, 6, seed=seed)}
        expected = np.array(np.nonzero(np.maximum(feeds["x"], 0)))
        np.testing.assert_array_equal(session.run(feeds)["n"], expected)


def test_callers_own_the_outputs_and_may_give_any_array(tmp_path):
    original_file = original(in_half(tmp_path / "m.onnx"), tmp_path)
    plan = original_file.plans.assemble("onnxruntime")
    session = ExecutableSession(
        plan.path, (function_signature(original_file.function, plan.kernel),), 1
    )
    x = draw(original_file.function)["x"]
    first = session.run({"x": x})["y"]
    first_copy = first.copy()
    session.run({"x": x + 1})
    np.testing.assert_array_equal(first, first_copy)
    first[...] = 0
    readonly = x.copy()
    readonly.flags.writeable = False
    odd = np.zeros(x.nbytes + 2, np.uint8)[2:].view(np.float16).reshape(x.shape)
    odd[...] = x
    for array in (readonly, np.asfortranarray(x), odd, np.array(x)):
        np.testing.assert_array_equal(session.run({"x": array})["y"], first_copy)
    (tensor,) = session.run_tensors({"x": x}).values()
    np.testing.assert_array_equal(np.from_dlpack(tensor), first_copy)


@pytest.mark.parametrize(
    ("names", "options", "baselines"),
    [
        (BOTH, {}, {"onnxruntime", "openvino", "openvino-bf16"}),
        (("openvino", "tvm"), {}, {"openvino", "openvino-bf16"}),
        (("tvm",), {}, set()),
        (BOTH, {"fallback": False}, set()),
        (BOTH, {"device": "cuda"}, set()),
    ],
)
def test_its_framework_must_be_among_the_backends(tmp_path, names, options, baselines):
    original_file = original(in_half(tmp_path / "m.onnx"), tmp_path, names, **options)
    assert original_file.plans.baselines == baselines


def test_the_file_is_kept_as_it_is(tmp_path):
    path = two_inputs(tmp_path / "m.onnx")
    assert original_bytes(path) == path.read_bytes()
    external = onnx.load_from_string(original_bytes(in_other_files(tmp_path / "o.onnx")))
    (weight,) = external.graph.initializer
    assert not weight.external_data
    np.testing.assert_array_equal(numpy_helper.to_array(weight), floats(16, 24))
