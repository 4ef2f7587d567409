"""Regions in blocked layout against ONNX Runtime, on every instruction set and with threads."""

from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from collage.backends.blocked import BlockedBackend
from collage.backends.blocked.program import Op
from collage.errors import BackendError
from collage.frontend import Function, import_model
from collage.frontend.region import region_onnx, region_values
from collage.rules import find_candidates
from collage.runtime.blob import pack, unpack
from tests.runtime import executables

INSTRUCTIONS = ("avx512", "avx2", "plain")


class Net:
    """Writes a model node by node; every method returns the name of what it makes."""

    def __init__(self, x: tuple[int, ...], seed: int = 3) -> None:
        self.random = np.random.default_rng(seed)
        self.shapes = {"x": x}
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, *shape: int, scale: float = 1.0) -> str:
        name = f"w{len(self.weights)}"
        values = (self.random.standard_normal(shape) * scale).astype(np.float32)
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def number(self, value: float) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.array(value, np.float32), name))
        return name

    def add(self, op: str, *inputs: str, **attributes) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return name

    def conv(
        self, x: str, channels: tuple[int, int], k=(1, 1), groups=1, bias=True, **attrs
    ) -> str:
        inner, out = channels
        size = (out, inner // groups, *k)
        inputs = [x, self.weight(*size, scale=float(np.prod(size[1:])) ** -0.5)]
        if bias:
            inputs.append(self.weight(out))
        return self.add("Conv", *inputs, group=groups, **attrs)

    def depthwise(self, x: str, channels: int, k: int, stride: int = 1, **attrs) -> str:
        attrs.setdefault("pads", [k // 2] * 4)
        return self.conv(
            x, (channels, channels), (k, k), channels, strides=[stride, stride], **attrs
        )

    def silu(self, x: str) -> str:
        return self.add("Mul", x, self.add("Sigmoid", x))

    def excited(self, x: str, channels: int, squeezed: int) -> str:
        mean = self.add("GlobalAveragePool", x)
        inner = self.silu(self.conv(mean, (channels, squeezed)))
        return self.add("Mul", x, self.add("Sigmoid", self.conv(inner, (squeezed, channels))))

    def function(self, path, *outputs: str) -> Function:
        def info(name, shape=None):
            return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

        inputs = [info(name, shape) for name, shape in self.shapes.items()]
        graph = helper.make_graph(
            self.nodes, "model", inputs, [info(one) for one in outputs], self.weights
        )
        opsets = [helper.make_opsetid("", 17)]
        made = helper.make_model(graph, opset_imports=opsets, ir_version=9)
        onnx.save(made, path / "model.onnx")
        return import_model(path / "model.onnx", work_dir=path).functions[0]


def steps_of(function: Function, nodes: int) -> list[Op]:
    header, _ = unpack(BlockedBackend().compile(function, nodes, 1).blob)
    return [Op(step[0]) for step in header["steps"]]


def run(function: Function, nodes: int, threads: int = 1, **header) -> list[np.ndarray]:
    entries, tensors = unpack(BlockedBackend().compile(function, nodes, threads).blob)
    del entries["tensors"]
    inputs, outputs = region_values(function, nodes)
    feeds = feeds_of(function, inputs)
    found = [np.full(function.graph.types[one].shape, np.nan, np.float32) for one in outputs]
    blob = pack({**entries, **header}, tensors)
    executables.call_kernel("blocked", blob, list(feeds.values()), found)
    return found


def feeds_of(function: Function, inputs) -> dict[str, np.ndarray]:
    random = np.random.default_rng(5)
    return {n: random.standard_normal(function.graph.types[n].shape, np.float32) for n in inputs}


def check(function: Function, nodes: int = 0, threads: int = 1, **header) -> None:
    nodes = nodes or function.graph.everything
    inputs, _ = region_values(function, nodes)
    session = onnxruntime.InferenceSession(region_onnx(function, nodes).SerializeToString())
    reference = session.run(None, feeds_of(function, inputs))
    for found, wanted in zip(run(function, nodes, threads, **header), reference, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())


@pytest.fixture(params=INSTRUCTIONS)
def instructions(request, tmp_path):
    net = Net((1, 3, 5, 5))
    function = net.function(tmp_path, net.conv("x", (3, 2)))
    try:
        check(function, instructions=request.param)
    except ValueError as error:
        assert "this machine has no" in str(error)  # noqa: PT017
        pytest.skip(str(error))
    return request.param


@dataclass(frozen=True)
class Case:
    """A convolution: shape of x, channels out (0: depthwise), kernel, and attributes."""

    x: tuple[int, int, int, int]
    out: int
    k: tuple[int, int]
    attributes: dict

    def __str__(self) -> str:
        return f"{self.x}-{self.out}-{self.k}-{self.attributes}"


CASES = [
    Case((1, 16, 8, 8), 32, (1, 1), {}),
    Case((1, 1, 1, 1), 1, (1, 1), {}),
    Case((2, 19, 9, 13), 33, (1, 1), {}),
    Case((3, 40, 7, 7), 31, (1, 1), {}),
    Case((1, 70, 6, 5), 65, (1, 1), {"strides": [2, 2]}),
    Case((1, 9, 6, 5), 8, (1, 1), {"pads": [1, 0, 0, 2]}),
    Case((1, 3, 17, 19), 24, (3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    Case((2, 3, 17, 30), 8, (7, 7), {"strides": [4, 3], "pads": [3, 3, 3, 3]}),
    Case((1, 20, 11, 12), 18, (3, 3), {"pads": [1, 1, 1, 1]}),
    Case((2, 33, 11, 12), 18, (3, 5), {"dilations": [2, 1], "pads": [0, 2, 3, 0]}),
    Case((1, 4, 9, 9), 5, (3, 3), {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
    Case((1, 16, 14, 14), 0, (3, 3), {"pads": [1, 1, 1, 1]}),
    Case((2, 37, 15, 9), 0, (5, 5), {"pads": [2, 2, 2, 2], "strides": [2, 2]}),
    Case((1, 5, 7, 7), 0, (7, 7), {"pads": [3, 3, 3, 3]}),
    Case((1, 40, 12, 40), 0, (5, 3), {"pads": [0, 1, 3, 0], "strides": [3, 1]}),
    Case((1, 8, 13, 12), 0, (3, 3), {"dilations": [2, 3], "pads": [2, 3, 2, 3]}),
    Case((1, 24, 12, 12), 0, (3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    Case((1, 24, 5, 5), 0, (2, 2), {"strides": [3, 3]}),
]


def single(case: Case, path, bias: bool = True) -> Function:
    net = Net(case.x)
    channels = (case.x[1], case.out or case.x[1])
    groups = 1 if case.out else case.x[1]
    return net.function(
        path, net.silu(net.conv("x", channels, case.k, groups, bias, **case.attributes))
    )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_convolutions(case, tmp_path, instructions):
    function = single(case, tmp_path)
    check(function, instructions=instructions)
    check(function, 1, threads=2, instructions=instructions)


@pytest.mark.parametrize("case", [CASES[0], CASES[11]], ids=str)
def test_without_bias(case, tmp_path):
    check(single(case, tmp_path, bias=False))


def activations(net: Net, x: str) -> dict[str, str]:
    sixth = {"alpha": 1 / 6, "beta": 0.5}
    clipped = net.add("Clip", net.add("Add", x, net.number(3)), net.number(0), net.number(6))
    return {
        "relu": net.add("Relu", x),
        "relu6": net.add("Clip", x, net.number(0), net.number(6)),
        "leaky": net.add("LeakyRelu", x, alpha=0.1),
        "sigmoid": net.add("Sigmoid", x),
        "silu": net.silu(x),
        "hard_sigmoid": net.add("HardSigmoid", x, **sixth),
        "hard_swish": net.add("HardSwish", x),
        "gated": net.add("Mul", x, net.add("HardSigmoid", x, **sixth)),
        "spelled": net.add("Div", net.add("Mul", x, clipped), net.number(6)),
        "linear": net.add("Add", net.add("Mul", x, net.number(2)), net.number(0.5)),
        "per_channel": net.add("Mul", x, net.weight(20, 1, 1)),
        "normalised": net.add("Add", net.add("Mul", x, net.weight(1, 20, 1, 1)), net.weight(20, 1, 1)),
    }  # fmt: skip


ACTIVATIONS = tuple(activations(Net((1, 1, 1, 1)), "x"))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name, tmp_path, instructions):
    net = Net((1, 6, 9, 7))
    x = net.conv("x", (6, 20))
    before = len(net.nodes)
    wanted = activations(net, x)[name]
    net.nodes = net.nodes[:before] + needed(net.nodes[before:], wanted)
    check(net.function(tmp_path, wanted), instructions=instructions)


def needed(nodes, wanted: str):
    """The nodes that `wanted` depends on."""
    found, names = [], {wanted}
    for node in reversed(nodes):
        if names & set(node.output):
            found.insert(0, node)
            names.update(node.input)
    return found


def test_extreme_arguments_of_silu(tmp_path, instructions):
    net = Net((1, 1, 1, 9))
    scaled = net.add("Mul", net.conv("x", (1, 1), bias=False), net.number(1e4))
    check(net.function(tmp_path, net.silu(scaled)), instructions=instructions)


@dataclass(frozen=True)
class Block:
    """An inverted residual block."""

    channels: int
    expanded: int
    size: tuple[int, int]
    k: int = 3
    stride: int = 1
    squeezed: int = 0
    batch: int = 1


BLOCKS = [
    Block(16, 96, (20, 20), stride=2),
    Block(24, 144, (14, 14), squeezed=6),
    Block(13, 50, (9, 11), k=5, squeezed=3, batch=2),
    Block(40, 33, (7, 7), k=5, stride=2, squeezed=10),
    Block(8, 31, (5, 64), k=7),
    Block(20, 129, (7, 7), squeezed=5, batch=3),
]


def build(block: Block, path) -> Function:
    net = Net((block.batch, block.channels, *block.size))
    expanded = net.silu(net.conv("x", (block.channels, block.expanded)))
    inner = net.silu(net.depthwise(expanded, block.expanded, block.k, block.stride))
    if block.squeezed:
        inner = net.excited(inner, block.expanded, block.squeezed)
    y = net.conv(inner, (block.expanded, block.channels))
    return net.function(path, net.add("Add", y, "x") if block.stride == 1 else y)


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_inverted_residual_blocks(block, tmp_path, instructions):
    function = build(block, tmp_path)
    for threads in (1, 2, 3):
        check(function, threads=threads, instructions=instructions)


def test_a_block_is_few_steps(tmp_path):
    function = build(Block(24, 144, (14, 14), squeezed=6), tmp_path)
    assert steps_of(function, function.graph.everything) == [
        Op.EXPAND, Op.PRODUCT, Op.PRODUCT, Op.PRODUCT,
    ]  # fmt: skip


def test_values_needed_elsewhere_stay(tmp_path):
    """The expanded value and the scaled one are outputs, so nothing may fold them away."""
    net = Net((1, 8, 6, 6))
    expanded = net.silu(net.conv("x", (8, 24)))
    inner = net.excited(net.depthwise(expanded, 24, 3), 24, 4)
    y = net.conv(inner, (24, 8))
    function = net.function(tmp_path, expanded, inner, y)
    assert Op.EXPAND not in steps_of(function, function.graph.everything)
    assert Op.ELEMENTWISE in steps_of(function, function.graph.everything)
    check(function)


@pytest.mark.parametrize("seed", range(12))
def test_random_models_and_their_regions(seed, tmp_path):
    random = np.random.default_rng(seed)
    batch, channels = int(random.integers(1, 3)), int(random.integers(1, 50))
    net = Net((batch, channels, *map(int, random.integers(3, 20, 2))), seed)
    x, same = "x", []
    for _ in range(6):
        kind = random.integers(0, 5)
        if kind == 0:
            out, k = int(random.integers(1, 60)), int(random.choice([1, 1, 3]))
            x, channels, same = net.conv(x, (channels, out), (k, k), pads=[k // 2] * 4), out, []
        elif kind == 1:
            x = net.depthwise(x, channels, int(random.choice([3, 5])), int(random.integers(1, 3)))
            same = []
        elif kind == 2:
            x = net.excited(x, channels, int(random.integers(1, 9)))
        elif kind == 3 and same:
            x = net.add("Add", x, same[int(random.integers(len(same)))])
        else:
            x = net.silu(x)
        same.append(x)
    function = net.function(tmp_path, net.conv(x, (channels, 5)))
    check(function, threads=2)
    regions = [c.inside for c in find_candidates(function, [BlockedBackend()]) if not c.is_host]
    assert regions
    for region in random.permutation(np.array(regions, object))[:8]:
        check(function, region)


REFUSALS = [
    ("groups", lambda n: n.conv("x", (4, 4), (3, 3), 2), "has 2 groups, not one per channel"),
    ("pool", lambda n: n.add("MaxPool", "x", kernel_shape=[2, 2]), "pooling is no product"),
    ("softmax", lambda n: n.add("Softmax", "x"), "softmax is no product"),
    ("exp", lambda n: n.add("Exp", "x"), "exp cannot be done while a result is stored"),
    ("max", lambda n: n.add("Max", "x", n.weight(4, 1, 1)), "max of two values"),
    ("row", lambda n: n.add("Mul", "x", n.weight(1, 6)), "is no number per channel"),
]


@pytest.mark.parametrize(
    ("make", "reason"), [one[1:] for one in REFUSALS], ids=[one[0] for one in REFUSALS]
)
def test_it_says_why_not(make, reason, tmp_path):
    net = Net((1, 4, 6, 6))
    function = net.function(tmp_path, make(net))
    assert reason in (BlockedBackend().unsupported(function, 0) or "")
    with pytest.raises(BackendError, match=reason):
        BlockedBackend().compile(function, 1, 1)


def test_other_ranks_are_refused(tmp_path):
    net = Net((1, 4, 6))
    function = net.function(tmp_path, net.conv("x", (4, 4), (3,)))
    assert "has not two spatial dimensions" in (BlockedBackend().unsupported(function, 0) or "")


def test_elementwise_work_needs_a_convolution(tmp_path):
    net = Net((1, 4, 6, 6))
    function = net.function(tmp_path, net.add("Relu", "x"))
    reason = "Relu is only taken together with a convolution or matrix product"
    assert BlockedBackend().unsupported(function, 0) == reason


def test_candidates_hold_a_convolution(tmp_path):
    function = build(BLOCKS[1], tmp_path)
    found = [c for c in find_candidates(function, [BlockedBackend()]) if not c.is_host]
    convolutions = sum(1 << n.index for n in function.graph.nodes if n.op == "Conv")
    assert function.graph.everything in {c.inside for c in found}
    assert all(c.inside & convolutions for c in found)


def test_a_blob_that_does_not_fit_is_refused(tmp_path):
    function = build(BLOCKS[0], tmp_path)
    nodes = function.graph.everything
    header, _ = unpack(BlockedBackend().compile(function, nodes, 1).blob)
    wrong = [[9, *shape[1:]] if i else [1, 17, 20, 20] for i, shape in enumerate(header["values"])]
    with pytest.raises(ValueError, match="do not fit its header"):
        run(function, nodes, values=wrong)
    with pytest.raises(ValueError, match="a step ends too early"):
        run(function, nodes, steps=[step[:-1] for step in header["steps"]])
    with pytest.raises(ValueError, match="a step reads what was not made before"):
        run(function, nodes, steps=header["steps"][::-1])
    with pytest.raises(ValueError, match="expected 1 tensors, got 2"):
        run(function, nodes, outputs=[])


def test_it_is_available_with_its_revision():
    found = BlockedBackend().availability()
    assert found.available or "AVX2" in found.reason
    assert not found.available or found.libraries["instructions"] in INSTRUCTIONS


def attention_inputs(net: Net, x: str, width: int) -> list[str]:
    return [
        net.add("Add", net.add("MatMul", x, net.weight(width, out)), net.weight(out))
        for out in (width, 40, 7)
    ]


@pytest.mark.parametrize("shape", [(1, 128, 64), (2, 9, 33), (31, 20), (1, 1, 17)])
def test_parallel_products(shape, tmp_path, instructions):
    net = Net(shape)
    function = net.function(tmp_path, *attention_inputs(net, "x", shape[-1]))
    for threads in (1, 2):
        check(function, threads=threads, instructions=instructions)


def test_products_in_a_row(tmp_path, instructions):
    net = Net((1, 20, 48))
    inner = net.silu(net.add("Add", net.add("MatMul", "x", net.weight(48, 96)), net.weight(96)))
    y = net.add("Add", net.add("MatMul", inner, net.weight(96, 48)), "x")
    check(net.function(tmp_path, y), instructions=instructions)


@pytest.mark.parametrize(
    "attributes", [{}, {"transB": 1}, {"transB": 1, "alpha": 0.5, "beta": 2.0}], ids=str
)
def test_gemm(attributes, tmp_path):
    net = Net((5, 20))
    size = (33, 20) if "transB" in attributes else (20, 33)
    check(
        net.function(
            tmp_path, net.add("Gemm", "x", net.weight(*size), net.weight(33), **attributes)
        )
    )


def test_products_of_pooled_values(tmp_path):
    net = Net((1, 20, 6, 6))
    mean = net.add("Flatten", net.add("GlobalAveragePool", net.conv("x", (20, 24))))
    function = net.function(tmp_path, net.add("Gemm", mean, net.weight(24, 10), net.weight(10)))
    check(function)


def test_parallel_products_are_candidates(tmp_path):
    net = Net((1, 16, 32))
    results = attention_inputs(net, net.add("Relu", "x"), 32)
    joined = net.add("Concat", *results, axis=-1)
    function = net.function(tmp_path, net.add("Softmax", joined))
    found = {c.inside for c in find_candidates(function, [BlockedBackend()]) if not c.is_host}
    nodes = function.graph.nodes
    bare = sum(1 << n.index for n in nodes if n.op == "MatMul")
    assert bare in found
    assert bare | sum(1 << n.index for n in nodes if n.op == "Add") in found


def test_computed_matrices_are_refused(tmp_path):
    net = Net((3, 3))
    function = net.function(tmp_path, net.add("MatMul", "x", "x"))
    assert "computed, not constant" in (BlockedBackend().unsupported(function, 0) or "")


def test_rows_of_four_dimensions_are_refused(tmp_path):
    net = Net((1, 5, 6, 8))
    function = net.function(tmp_path, net.add("MatMul", "x", net.weight(8, 4)))
    assert "seen with another shape" in (BlockedBackend().unsupported(function, 0) or "")
    with pytest.raises(BackendError, match="seen with another shape"):
        BlockedBackend().compile(function, 1, 1)
