"""What a search knows before it measures anything."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from collage.options import Options
from collage.pipeline.compile_context import open_compile_context
from collage.pipeline.search_stage import (
    enumerated_function,
    imported,
    local_measurer,
    model_sweep,
    sampled,
)
from collage.runtime.target import Target


def layers(path, count, width=512):
    """A stack of equal layers, each a product with its bias and activation: one MiB of weights."""
    rng = np.random.default_rng(0)
    nodes, weights, value = [], [], "x"
    for number in range(count):
        w, b, product, biased, done = (f"{letter}{number}" for letter in "wbpsy")
        weights += [
            numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32) / 16, name)
            for name, shape in ((w, (width, width)), (b, (width,)))
        ]
        nodes += [
            helper.make_node("MatMul", [value, w], [product]),
            helper.make_node("Add", [product, b], [biased]),
            helper.make_node("Relu", [biased], [done]),
        ]
        value = done
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, width]) for name in ("x", value)
    ]
    graph = helper.make_graph(nodes, "layers", ends[:1], ends[1:], weights)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), path)
    return path


def test_a_deeper_model_reuses_costs_of_a_shallow_one(tmp_path):
    options = Options(backends=("onnxruntime",), threads=1, cache_dir=tmp_path / "store")
    with open_compile_context(options) as context:
        model = imported(layers(tmp_path / "shallow.onnx", 2), context)
        (shallow,) = model.functions
        work = enumerated_function(shallow, context).work
        measurer = local_measurer(shallow, sampled(model, shallow, context).reference_dir, context)
        measured = dict(zip(work, measurer.measure(list(work.values())), strict=True))
        measurer.close()
    with open_compile_context(options) as context:
        (deep,) = imported(layers(tmp_path / "deep.onnx", 4), context).functions
        assert model_sweep(deep, Target.CPU) != model_sweep(shallow, Target.CPU)
        work = enumerated_function(deep, context).work
        measurer = local_measurer(deep, tmp_path, context)
        found = dict(zip(work, measurer.recall(list(work.values())), strict=True))
    common = measured.keys() & found.keys()
    assert len(common) > 5
    assert all(found[key] == measured[key] for key in common)
    new = found.keys() - common
    assert new
    assert all(found[key].is_unknown for key in new)
