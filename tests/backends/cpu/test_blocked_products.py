"""Matrix products in blocked layout, also parallel ones, on every instruction set and with threads."""

import pytest

from collage.backends.base import BuildContext
from collage.backends.cpu.blocked import BlockedBackend
from collage.errors import BackendError
from collage.rules import find_candidates
from tests.backends.cpu import blocked_nets
from tests.backends.cpu.blocked_nets import Net, check

instructions = blocked_nets.instructions


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
    regions_listed = {
        c.inside for c in find_candidates(function, [BlockedBackend()]) if not c.is_host
    }
    nodes = function.graph.nodes
    bare = sum(1 << n.index for n in nodes if n.op == "MatMul")
    assert bare in regions_listed
    assert bare | sum(1 << n.index for n in nodes if n.op == "Add") in regions_listed


def test_computed_matrices_are_refused(tmp_path):
    net = Net((3, 3))
    function = net.function(tmp_path, net.add("MatMul", "x", "x"))
    assert "computed, not constant" in (BlockedBackend().unsupported(function, 0) or "")


def test_rows_of_four_dimensions_are_refused(tmp_path):
    net = Net((1, 5, 6, 8))
    function = net.function(tmp_path, net.add("MatMul", "x", net.weight(8, 4)))
    assert "seen with another shape" in (BlockedBackend().unsupported(function, 0) or "")
    with pytest.raises(BackendError, match="seen with another shape"):
        BlockedBackend().compile(function, 1, BuildContext(1))
