"""Regions in blocked layout against ONNX Runtime, on every instruction set and with threads."""

from dataclasses import dataclass

import numpy as np
import pytest

from collage.backends.base import BuildContext
from collage.backends.cpu.blocked import BlockedBackend
from collage.backends.cpu.blocked.program import Op
from collage.errors import BackendError
from collage.frontend import Function
from collage.frontend.region import region_values
from collage.rules import find_candidates
from collage.runtime.blob import unpack
from tests.backends.cpu import blocked_nets
from tests.backends.cpu.blocked_nets import INSTRUCTIONS, Net, check, run, steps_of

instructions = blocked_nets.instructions


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
    expected = activations(net, x)[name]
    net.nodes = net.nodes[:before] + needed(net.nodes[before:], expected)
    check(net.function(tmp_path, expected), instructions=instructions)


def needed(nodes, name: str):
    """Return the nodes `name` depends on."""
    kept_nodes, names = [], {name}
    for node in reversed(nodes):
        if names & set(node.output):
            kept_nodes.insert(0, node)
            names.update(node.input)
    return kept_nodes


def test_extreme_arguments_of_silu(tmp_path, instructions):
    net = Net((1, 1, 1, 9))
    scaled = net.add("Mul", net.conv("x", (1, 1), bias=False), net.number(1e4))
    check(net.function(tmp_path, net.silu(scaled)), instructions=instructions)


def test_sigmoid_is_as_exact_as_float32(tmp_path, instructions):
    net = Net((1, 16, 64, 64))
    scaled = net.add("Mul", net.conv("x", (16, 32)), net.number(6))
    names = scaled, net.add("Sigmoid", scaled), net.silu(scaled)
    function = net.function(tmp_path, *names)
    everything = function.graph.everything
    _, order = region_values(function, everything)
    outputs = dict(zip(order, run(function, everything, instructions=instructions), strict=True))
    x, sigmoid, silu = (outputs[name] for name in names)
    exact = 1 / (1 + np.exp(-x.astype(np.float64)))
    allowed = 3e-7 + 1.2e-7 * np.abs(x)  # the exponent's own rounding grows with x
    assert np.abs(x).max() > 20
    assert (np.abs(sigmoid / exact - 1) <= allowed).all()
    assert (np.abs(silu / (exact * x) - 1) <= allowed).all()


@pytest.mark.parametrize("factor", [np.inf, np.nan])
def test_sigmoid_of_what_is_no_number(factor, tmp_path, instructions):
    net = Net((1, 1, 4, 9))
    scaled = net.add("Mul", net.conv("x", (1, 1), bias=False), net.number(factor))
    function = net.function(tmp_path, scaled, net.add("Sigmoid", scaled))
    x, sigmoid = run(function, function.graph.everything, instructions=instructions)
    expected = np.where(np.isnan(x), np.nan, x > 0)
    assert np.isnan(factor) or {-np.inf, np.inf} == set(x.flat)
    np.testing.assert_allclose(sigmoid, expected, atol=1e-30)


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
        BlockedBackend().compile(function, 1, BuildContext(1))


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
    candidates = [c for c in find_candidates(function, [BlockedBackend()]) if not c.is_host]
    convolutions = sum(1 << n.index for n in function.graph.nodes if n.op == "Conv")
    assert function.graph.everything in {c.inside for c in candidates}
    assert all(c.inside & convolutions for c in candidates)


def test_a_blob_that_does_not_fit_is_refused(tmp_path):
    function = build(BLOCKS[0], tmp_path)
    nodes = function.graph.everything
    header, _ = unpack(BlockedBackend().compile(function, nodes, BuildContext(1)).blob)
    wrong = [[9, *shape[1:]] if i else [1, 17, 20, 20] for i, shape in enumerate(header["values"])]
    with pytest.raises(ValueError, match="input and output differ in batch"):
        run(function, nodes, values=wrong)
    with pytest.raises(ValueError, match="a step ends too early"):
        run(function, nodes, steps=[step[:-1] for step in header["steps"]])
    with pytest.raises(ValueError, match="a step reads what was not made before"):
        run(function, nodes, steps=header["steps"][::-1])
    with pytest.raises(ValueError, match="expected 1 tensors, got 2"):
        run(function, nodes, outputs=[])


def test_it_is_available_with_its_revision():
    availability = BlockedBackend().availability()
    assert availability.available or "AVX2" in availability.reason
    assert not availability.available or availability.libraries["instructions"] in INSTRUCTIONS
