"""oneDNN's post-ops in layouts of its own choice, for every primitive with post-ops."""

import numpy as np
import pytest

from collage.backends.cpu.onednn import OneDnnBackend
from tests.backends.cpu.onednn_nets import check, make, node
from tests.frontend.build import floats, integers

CHANNELS = 32
IMAGE = (1, CHANNELS, 6, 6)
WEIGHTS = {
    "p": floats(CHANNELS, CHANNELS, 1, 1) / 4, "w": floats(CHANNELS, CHANNELS, 3, 3) / 8,
    "d": floats(CHANNELS, 1, 3, 3), "channel": floats(1, CHANNELS, 1, 1),
    "row": floats(12), "place": floats(1, 1, 12, 12), "none": np.zeros(0, "float32"),
    "twice": np.array([1, 1, 2, 2], "float32"),
}  # fmt: skip

SAME = {"pads": [1, 1, 1, 1]}
WINDOW = {"kernel_shape": [3, 3], **SAME}
STEPS = {
    "1x1 convolution": ("Conv", "ap", {}),
    "3x3 convolution": ("Conv", "aw", SAME),
    "depthwise convolution": ("Conv", "ad", {**SAME, "group": CHANNELS}),
    "transposed convolution": ("ConvTranspose", "aw", SAME),
    "maximum": ("MaxPool", "a", WINDOW),
    "mean": ("AveragePool", "a", WINDOW),
    "sum": ("Add", "ae", {}),
    "activation": ("Tanh", "a", {}),
    "nearest": ("Resize", ["a", "none", "twice"], {"mode": "nearest"}),
    "linear": ("Resize", ["a", "none", "twice"], {"mode": "linear"}),
}
"""Operators that read `a`, the result of a convolution; the last two make an image twice as large."""

POSTS = {
    "a value in oneDNN's layout": [node("Add", "zi", "y")],
    "a plain value": [node("Add", "zq", "y")],
    "a factor per channel": [node("Mul", ["z", "channel"])],
    "a computed factor per channel": [node("Mul", "zg")],
    "a summand per row": [node("Add", ["z", "row"])],
    "a summand per place": [node("Add", ["z", "place"])],
    "operands in three layouts": [
        node("Mul", "zg", "m"), node("Add", "mi", "n"), node("Relu", "n", "o"),
        node("Sub", "oq", "r"), node("Add", "ri"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("variant", OneDnnBackend.variants)
@pytest.mark.parametrize("posts", POSTS)
@pytest.mark.parametrize("step", STEPS)
def test_post_operations_read_operands_where_they_lie(step, posts, variant, tmp_path):
    op, operands, attributes = STEPS[step]
    size = 2 if op == "Resize" else 1
    place = (1, CHANNELS, size * 6, size * 6)
    weights = {**WEIGHTS, "row": WEIGHTS["row"][: size * 6], "place": floats(1, 1, *place[2:])}
    nodes = [
        node("Conv", "xp", "a"), node("Conv", "xp", "e"), node("Conv", "qp", "i"),
        node("GlobalAveragePool", "i", "g"), node(op, operands, "z", **attributes), *POSTS[posts],
    ]  # fmt: skip
    check(make(tmp_path, nodes, {"x": IMAGE, "q": place}, weights), variant=variant)


RIM = {"rim": integers(0, 0, 1, 2, 0, 0, 1, 0)}
BOUNDS = {
    "start": integers(1, 0),
    "end": integers(9, 9),
    "axes": integers(2, 3),
    "by": integers(2, 2),
}
MOVES = {
    "a rim": ([node("Pad", ["a", "rim"], "z")], RIM),
    "every second place": ([node("Slice", ["a", "start", "end", "axes", "by"], "z")], BOUNDS),
    "one channel group": ([node("Gather", ["a", "i"], "z", axis=1)], {"i": integers(*range(8, 24))}),
}  # fmt: skip
READERS = {
    "activation": [node("Relu", "z")],
    "convolution": [node("Conv", "zk")],
    "concat": [node("Tanh", "z", "t"), node("Concat", "zt", axis=1)],
}


@pytest.mark.parametrize("variant", OneDnnBackend.variants)
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("move", MOVES)
def test_parts_and_rims_of_activations(move, reader, variant, tmp_path):
    nodes, constants = MOVES[move]
    after = READERS[reader]
    channels = 16 if move == "one channel group" else CHANNELS
    weights = {**WEIGHTS, **constants, "k": floats(16, channels, 1, 1)}
    function = make(tmp_path, [node("Conv", "xp", "a"), *nodes, *after], {"x": IMAGE}, weights)
    check(function, variant=variant)


def test_import_folds_a_rim_into_a_convolution(tmp_path):
    nodes = [node("Pad", ["x", "rim"], "z"), node("Conv", "zw")]
    function = make(tmp_path, nodes, {"x": IMAGE}, {**WEIGHTS, **RIM})
    assert [n.op for n in function.graph.nodes] == ["Conv"]
