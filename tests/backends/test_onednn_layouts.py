"""oneDNN's post-operations on activations in layouts of its own choice, for every step that has some."""

import numpy as np
import pytest

from collage.backends.onednn import OneDnnBackend
from tests.backends.test_onednn import check, make, node
from tests.frontend.build import floats

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
