"""Models that want to harm whoever reads them: each is small, and none may cost much."""

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper
from onnx.helper import make_node as node

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
Builder = Callable[[], bytes]
HOSTILE: dict[str, tuple[str, Builder]] = {}
"""By name: words of the reason with which the model is refused, and what makes it."""


def refused(words: str) -> Callable[[Builder], Builder]:
    def add(build: Builder) -> Builder:
        HOSTILE[build.__name__] = (words, build)
        return build

    return add


def model(
    nodes: Sequence[NodeProto],
    weights: Sequence[TensorProto] = (),
    functions: Sequence[onnx.FunctionProto] = (),
    shape: Sequence[int] = (4,),
) -> onnx.ModelProto:
    """A model from x to y."""
    x = helper.make_tensor_value_info("x", FLOAT, shape)
    graph = helper.make_graph(
        nodes, "g", [x], [helper.make_tensor_value_info("y", FLOAT, None)], weights
    )
    return helper.make_model(graph, opset_imports=OPSETS, functions=functions, ir_version=10)


def ints(*values: int) -> TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), "shape")


def folded(bomb: Sequence[NodeProto], weights: Sequence[TensorProto]) -> bytes:
    """A constant `big` that is folded; y is the sum of x and its mean."""
    tail = [node("ReduceMean", ["big"], ["m"], keepdims=0), node("Add", ["x", "m"], ["y"])]
    return model([*bomb, *tail], weights).SerializeToString()


def function(name: str, *nodes: NodeProto) -> onnx.FunctionProto:
    return helper.make_function("own", name, ["a"], ["b"], nodes, OPSETS)


def call(name: str, source: str, target: str) -> NodeProto:
    return node(name, [source], [target], domain="own")


def add_y() -> onnx.ModelProto:
    weight = numpy_helper.from_array(np.ones(4, np.float32), "w")
    return model([node("Add", ["x", "w"], ["y"])], [weight])


@refused("when dense")
def sparse_bomb():
    hostile = model([node("Add", ["x", "s"], ["y"])])
    sparse = hostile.graph.sparse_initializer.add(dims=[1 << 29])
    sparse.values.CopyFrom(numpy_helper.from_array(np.ones(1, np.float32), "s"))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.zeros(1, np.int64), "i"))
    return hostile.SerializeToString()


@refused("place outside")
def sparse_index_outside():
    hostile = model([node("Add", ["x", "s"], ["y"])])
    sparse = hostile.graph.sparse_initializer.add(dims=[4])
    sparse.values.CopyFrom(numpy_helper.from_array(np.ones(1, np.float32), "s"))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.full(1, -9, np.int64), "i"))
    return hostile.SerializeToString()


@refused("places and values differ")
def sparse_indices_too_few():
    hostile = model([node("Add", ["x", "s"], ["y"])])
    sparse = hostile.graph.sparse_initializer.add(dims=[4])
    sparse.values.CopyFrom(numpy_helper.from_array(np.ones(3, np.float32), "s"))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.zeros(1, np.int64), "i"))
    return hostile.SerializeToString()


@refused("nodes once its functions are expanded")
def nested_functions(levels=18):
    names = [f"F{level}" for level in range(levels)]
    functions = [function(names[0], node("Relu", ["a"], ["b"]))]
    for inner, outer in itertools.pairwise(names):
        functions.append(function(outer, call(inner, "a", "c"), call(inner, "c", "b")))
    return model([call(names[-1], "x", "y")], functions=functions).SerializeToString()


@refused("more than 10")
def nested_functions_beyond_64_bits():
    functions = [function("F0", node("Relu", ["a"], ["b"]))]
    for level in range(60):
        inner = [call(f"F{level}", f"v{n}" if n else "a", f"v{n + 1}") for n in range(6)]
        functions.append(function(f"F{level + 1}", *inner, node("Relu", ["v6"], ["b"])))
    return model([call("F60", "x", "y")], functions=functions).SerializeToString()


@refused("calls itself")
def recursive_function():
    own = function("F", node("Relu", ["a"], ["c"]), call("F", "c", "b"))
    return model([call("F", "x", "y")], functions=[own]).SerializeToString()


@refused("calls itself")
def recursion_through_bodies():
    def branch(name, inner):
        return helper.make_graph([inner], name, [], [onnx.ValueInfoProto(name="r")])

    condition = numpy_helper.from_array(np.array(True), "c")
    nodes = [
        node("Constant", [], ["c"], value=condition),
        node("If", ["c"], ["b"], then_branch=branch("t", call("G", "a", "r")),
             else_branch=branch("e", node("Relu", ["a"], ["r"]))),
    ]  # fmt: skip
    functions = [function("F", *nodes), function("G", call("F", "a", "b"))]
    return model([call("F", "x", "y")], functions=functions).SerializeToString()


@refused("call each other more than")
def functions_in_a_long_chain():
    functions = [function("F0", node("Relu", ["a"], ["b"]))]
    functions += [function(f"F{n + 1}", call(f"F{n}", "a", "b")) for n in range(80)]
    return model([call("F80", "x", "y")], functions=functions).SerializeToString()


@refused("needs 1152921504606846976")
def huge_weight_without_data():
    weight = TensorProto(name="w", dims=[1 << 30, 1 << 30], data_type=FLOAT)
    return model([node("Add", ["x", "w"], ["y"])], [weight]).SerializeToString()


@refused("negative dimension")
def negative_dimensions():
    weight = TensorProto(name="w", dims=[-2, -2], data_type=FLOAT, float_data=[1.0] * 4)
    return model([node("Add", ["x", "w"], ["y"])], [weight]).SerializeToString()


@refused("dimensions, more than")
def weight_of_too_many_dimensions():
    weight = TensorProto(name="w", dims=[1] * 100_000, data_type=FLOAT, float_data=[1.0])
    return model([node("Add", ["x", "w"], ["y"])], [weight]).SerializeToString()


@refused("bytes of data and needs 16")
def wrong_length_of_raw_data():
    hostile = add_y()
    hostile.graph.initializer[0].raw_data = bytes(13)
    return hostile.SerializeToString()


@refused("elements of data and needs 4")
def wrong_number_of_elements():
    weight = TensorProto(name="w", dims=[4], data_type=FLOAT, float_data=[1.0] * 3)
    return model([node("Add", ["x", "w"], ["y"])], [weight]).SerializeToString()


@refused("unknown type")
def unknown_type_of_weights():
    weight = TensorProto(name="w", dims=[4], data_type=1000, raw_data=bytes(16))
    return model([node("Add", ["x", "w"], ["y"])], [weight]).SerializeToString()


@refused("COLLAGE_IMPORT_MEMORY")
def constant_of_shape_bomb():
    value = numpy_helper.from_array(np.ones(1, np.float32))
    return folded(
        [node("ConstantOfShape", ["shape"], ["big"], value=value)], [ints(1 << 20, 1 << 12)]
    )


@refused("COLLAGE_IMPORT_MEMORY")
def expand_bomb():
    unit = numpy_helper.from_array(np.ones((1, 1), np.float32), "one")
    return folded([node("Expand", ["one", "shape"], ["big"])], [unit, ints(1 << 20, 1 << 12)])


@refused("bind smaller shapes")
def tile_bomb():
    unit = numpy_helper.from_array(np.ones((1, 1), np.float32), "one")
    return folded([node("Tile", ["one", "shape"], ["big"])], [unit, ints(1 << 20, 1 << 12)])


@refused("COLLAGE_IMPORT_MEMORY")
def range_bomb():
    ends = [
        numpy_helper.from_array(np.array(value, np.float32), name)
        for name, value in (("from", 0), ("to", 1 << 32), ("step", 1))
    ]
    return folded([node("Range", ["from", "to", "step"], ["big"])], ends)


@refused("COLLAGE_IMPORT_MEMORY")
def doubling_bomb():
    start = numpy_helper.from_array(np.ones(1024, np.float32), "c0")
    steps = [node("Concat", [f"c{n}", f"c{n}"], [f"c{n + 1}"], axis=0) for n in range(24)]
    return folded([*steps, node("Identity", ["c24"], ["big"])], [start])


@refused("COLLAGE_IMPORT_MEMORY")
def value_whose_size_is_data():
    nodes = [
        node("ReduceSum", ["x"], ["s"], keepdims=1),
        node("Mul", ["s", "none"], ["zero"]),
        node("Add", ["zero", "many"], ["n"]),
        node("Cast", ["n"], ["shape"], to=INT64),
        node("ConstantOfShape", ["shape"], ["big"]),
        node("ReduceMean", ["big"], ["y"]),
    ]
    numbers = {"none": 0, "many": 1 << 34}
    weights = [numpy_helper.from_array(np.full(1, n, np.float32), k) for k, n in numbers.items()]
    return model(nodes, weights).SerializeToString()


@refused("COLLAGE_IMPORT_SECONDS")
def loop_without_end():
    body = helper.make_graph(
        [node("Identity", ["going"], ["goes"]), node("Cos", ["before"], ["after"])],
        "body",
        [helper.make_tensor_value_info("i", INT64, []),
         helper.make_tensor_value_info("going", TensorProto.BOOL, []),
         helper.make_tensor_value_info("before", FLOAT, [4])],
        [helper.make_tensor_value_info("goes", TensorProto.BOOL, []),
         helper.make_tensor_value_info("after", FLOAT, [4])],
    )  # fmt: skip
    weights = [
        numpy_helper.from_array(np.array(1 << 60), "many"),
        numpy_helper.from_array(np.array(True), "true"),
    ]
    return model(
        [node("Loop", ["many", "true", "x"], ["y"], body=body)], weights
    ).SerializeToString()


@refused("that this machine has for them; bind smaller shapes")
def huge_input():
    return model([node("Relu", ["x"], ["y"])], shape=(1 << 20, 1 << 20)).SerializeToString()


@refused("that this machine has for them; bind smaller shapes")
def huge_value():
    nodes = [node("Expand", ["x", "shape"], ["e"]), node("ReduceMean", ["e"], ["y"])]
    return model(nodes, [ints(1 << 20, 1 << 20, 4)]).SerializeToString()


@refused("complete, as the exporter wrote them")
def external_data_beyond_the_file():
    weight = TensorProto(name="w", dims=[4], data_type=FLOAT, data_location=TensorProto.EXTERNAL)
    for key, value in (("location", "model.onnx"), ("offset", str(1 << 50))):
        weight.external_data.add(key=key, value=value)
    return model([node("Add", ["x", "w"], ["y"])], [weight]).SerializeToString()


@refused("is no UTF-8")
def name_that_is_no_utf8():
    return add_y().SerializeToString().replace(b"\x0a\x01x\x0a\x01w", b"\x0a\x01x\x0a\x01\xff")


@refused("nested more than")
def deeply_nested_bodies():
    graph = add_y().graph.SerializeToString()
    for _ in range(1000):
        body = tagged(1, b"then_branch") + tagged(6, graph) + b"\xa0\x01\x05"
        graph = tagged(1, tagged(4, b"If") + tagged(5, body))
    return b"\x08\x0a" + tagged(8, OPSETS[0].SerializeToString()) + tagged(7, graph)


@refused("nested more than")
def deeply_nested_types():
    content = b""
    for _ in range(1000):
        content = tagged(4, tagged(1, content))
    graph = add_y().graph.SerializeToString() + tagged(13, tagged(1, b"v") + tagged(2, content))
    return b"\x08\x0a" + tagged(8, OPSETS[0].SerializeToString()) + tagged(7, graph)


def tagged(number: int, content: bytes) -> bytes:
    """Write a field that holds bytes."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(value: int) -> bytes:
    parts = []
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


@refused("text of 10000000 bytes")
def large_string_attribute():
    return model([node("Relu", ["x"], ["y"], note="a" * 10_000_000)]).SerializeToString()


@refused("more than the 100000 that are read")
def millions_of_empty_nodes():
    graph = add_y().graph.SerializeToString() + b"\x0a\x00" * 10_000_000
    return b"\x08\x0a" + tagged(7, graph)


@refused("parts, which no real model has")
def millions_of_empty_metadata():
    return add_y().SerializeToString() + b"\x72\x00" * 200_000


@refused("a second graph")
def two_graphs_that_are_merged():
    serialized = add_y().SerializeToString()
    return serialized + serialized


@refused("not an ONNX model, or truncated")
def truncated():
    return add_y().SerializeToString()[:-20]


@refused("not an ONNX model")
def picture():
    return b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 10


@refused("not an ONNX model")
def groups_that_nobody_writes():
    return add_y().SerializeToString() + b"\x0b" * 100


@refused("not an ONNX model")
def number_of_eleven_bytes():
    return b"\x08" + b"\xff" * 10 + b"\x01" + add_y().SerializeToString()


@refused("model.onnx")
def cyclic_graph():
    nodes = [node("Add", ["x", "b"], ["a"]), node("Relu", ["a"], ["b"]), node("Neg", ["b"], ["y"])]
    return model(nodes).SerializeToString()


@refused("model.onnx")
def one_name_made_twice():
    return model([node("Relu", ["x"], ["y"]), node("Neg", ["x"], ["y"])]).SerializeToString()


@refused("model.onnx")
def weights_of_one_name():
    hostile = add_y()
    hostile.graph.initializer.add().CopyFrom(hostile.graph.initializer[0])
    hostile.graph.initializer[1].dims[:] = [2, 2]
    return hostile.SerializeToString()


@refused("IR version 99")
def ir_of_the_future():
    hostile = add_y()
    hostile.ir_version = 99
    return hostile.SerializeToString()


@refused("model.onnx")
def opset_of_the_future():
    hostile = add_y()
    hostile.opset_import[0].version = 999
    return hostile.SerializeToString()


@refused("model.onnx")
def attribute_of_another_type():
    hostile = model([node("Transpose", ["x"], ["y"], perm="backwards")])
    return hostile.SerializeToString()
