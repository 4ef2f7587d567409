"""Regions: values, digests and bounds, on graphs small enough to check by hand."""

import numpy as np
import pytest
from onnx.helper import make_node as node

from collage.frontend.region import (
    region_bytes_and_flops,
    region_constants,
    region_digest,
    region_onnx,
    region_values,
    region_weights,
)
from tests.frontend.build import floats, imported, integers, model


@pytest.fixture
def layers(tmp_path):
    """Two equal layers (product, bias, relu), a third with another axis order, joined."""
    return imported(
        model(
            [
                node("MatMul", ["x", "w1"], ["m1"]),
                node("Add", ["m1", "b1"], ["a1"]),
                node("Relu", ["a1"], ["r1"]),
                node("MatMul", ["r1", "w2"], ["m2"]),
                node("Add", ["m2", "b2"], ["a2"]),
                node("Relu", ["a2"], ["r2"]),
                node("Softmax", ["r2"], ["s"], axis=0),
                node("Softmax", ["r2"], ["t"], axis=1),
                node("Sub", ["r1", "s"], ["d1"]),
                node("Sub", ["t", "r1"], ["d2"]),
            ],
            {"x": ("float32", (4, 8))},
            ["d1", "d2", "a1"],
            {
                "w1": floats(8, 8),
                "b1": floats(8),
                "w2": floats(8, 8, seed=1),
                "b2": floats(8, seed=1),
            },
        ),
        tmp_path,
    )


def test_values(layers):
    assert region_values(layers, 0b111) == (("x",), ("a1", "r1"))
    assert region_values(layers, 0b111000) == (("r1",), ("r2",))
    assert region_values(layers, 0b1100000000) == (("r1", "s", "t"), ("d1", "d2"))
    assert region_weights(layers, 0b11) == region_constants(layers, 0b11) == ("w1", "b1")


def test_onnx_takes_weights_as_inputs(layers):
    inside = region_onnx(layers, 0b111000)
    assert [value.name for value in inside.graph.initializer] == ["w2", "b2"]
    outside = region_onnx(layers, 0b111000, weights_as_inputs=True)
    assert [value.name for value in outside.graph.input] == ["r1", "w2", "b2"]
    assert not outside.graph.initializer


def test_digest_is_of_the_structure(layers):
    assert region_digest(layers, 0b1) == region_digest(layers, 0b1000)
    # The first layer returns the sum as well, the second does not.
    assert region_digest(layers, 0b111) != region_digest(layers, 0b111000)
    assert region_digest(layers, 0b101) != region_digest(layers, 0b1)
    # Another axis; the same operator with its operands the other way round.
    assert region_digest(layers, 1 << 6) != region_digest(layers, 1 << 7)
    assert region_digest(layers, 0b110 << 7) != region_digest(layers, 0b101 << 7)


def test_digest_keeps_small_integers_only(tmp_path):
    def digest(value: np.ndarray, table: np.ndarray) -> str:
        nodes = [node("Gather", ["w", "i"], ["g"]), node("Add", ["g", "x"], ["y"])]
        document = model(nodes, {"x": ("float32", (3, 4)), "i": ("int64", (3,))}, ["y", "z"],
                     {"w": table, "v": value})  # fmt: skip
        document.graph.node.append(node("Gather", ["x", "v"], ["z"]))
        return region_digest(imported(document, tmp_path), 0b111)

    first = digest(integers(0, 1), floats(9, 4))
    assert first == digest(integers(0, 1), floats(9, 4, seed=5))
    assert first != digest(integers(0, 2), floats(9, 4))
    assert first != digest(integers(0, 1), floats(8, 4))


def test_bounds(layers):
    moved, flops = region_bytes_and_flops(layers, 0b111)
    assert flops == 2 * 4 * 8 * 8
    assert moved == 4 * (4 * 8 + 8 * 8 + 8 + 2 * 4 * 8)


def test_a_lookup_reads_what_it_takes(tmp_path):
    document = model([node("Gather", ["w", "i"], ["y"])], {"i": ("int64", (3,))}, ["y"],
                 {"w": floats(1000, 4)})  # fmt: skip
    assert region_bytes_and_flops(imported(document, tmp_path), 1) == (3 * 8 + 2 * 3 * 4 * 4, 0)


def test_flops_of_convolutions_and_gemm(tmp_path):
    document = model(
        [
            node("Conv", ["x", "w"], ["c"], group=2),
            node("Flatten", ["c"], ["f"]),
            node("Gemm", ["f", "g"], ["y"], transB=1),
        ],
        {"x": ("float32", (1, 4, 5, 5))},
        ["y"],
        {"w": floats(6, 2, 3, 3), "g": floats(7, 54)},
    )
    function = imported(document, tmp_path)
    assert region_bytes_and_flops(function, 0b001)[1] == 2 * 6 * 9 * 2 * 9
    assert region_bytes_and_flops(function, 0b010) == (0, 0)
    assert region_bytes_and_flops(function, 0b100)[1] == 2 * 54 * 7
