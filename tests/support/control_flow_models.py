"""Small models with control flow, as text of ONNX's parser."""

from pathlib import Path

import numpy as np
import onnx

HEADER = '<ir_version: 9, opset_import: ["" : 18]>\n'

LOOP = """
main (float[2,8] x, int64 trips) => (float[2,8] y)
<float[8,8] weight>
{
    zero = Constant <value = float {0.0}> ()
    bias = Relu (x)
    go = Constant <value = bool {1}> ()
    final = Loop (trips, go, x) <body = turn (int64 i, bool going, float[2,8] state)
        => (bool next_going, float[2,8] next) {
            product = MatMul (state, weight)
            sum = Add (product, bias)
            next = Tanh (sum)
            next_going = Identity (going)
        }>
    y = Add (final, zero)
}
"""
"""A loop with a weight and a captured value; the number of turns is an input."""

SCAN_OUTPUT = """
main (float[2,8] x, int64 trips, float limit) => (float[2,8] last, float[n,2,8] rows, int64 turns)
<float[8,8] weight>
{
    go = Constant <value = bool {1}> ()
    zero = Constant <value = int64 {0}> ()
    last, turns, rows = Loop (trips, go, x, zero) <body = turn
        (int64 i, bool going, float[2,8] state, int64 count)
        => (bool next_going, float[2,8] next, int64 next_count, float[2,8] row) {
            product = MatMul (state, weight)
            next = Sigmoid (product)
            row = Relu (product)
            one = Constant <value = int64 {1}> ()
            next_count = Add (i, one)
            highest = ReduceMax <keepdims = 0> (next)
            next_going = Less (highest, limit)
        }>
}
"""
"""A loop that may end early; its stacked results have as many rows as it has turns."""

CONSTANT_TURNS = """
main (float[2,8] x) => (float[2] sums)
<float[8,8] weight, int64 three = {3}>
{
    go = Constant <value = bool {1}> ()
    axes = Constant <value = int64[2] {0, 2}> ()
    last, rows = Loop (three, go, x) <body = turn (int64 i, bool going, float[2,8] state)
        => (bool next_going, float[2,8] next, float[2,8] row) {
            next = MatMul (state, weight)
            row = Tanh (next)
            next_going = Identity (going)
        }>
    sums = ReduceSum <keepdims = 0> (rows, axes)
}
"""
"""A loop of three turns, whose stacked results other operators read."""

BRANCHES = """
main (float[2,8] x, bool condition) => (float[2,8] y)
<float[8,8] weight, float[8,8] other>
{
    scaled = Relu (x)
    chosen = If (condition) <
        then_branch = yes () => (float[2,8] a) { p = MatMul (scaled, weight) a = Tanh (p) },
        else_branch = no () => (float[2,8] b) { q = MatMul (x, other) b = Sigmoid (q) }>
    y = Add (chosen, x)
}
"""

PASSING_BRANCH = """
main (float[2,8] x, bool condition) => (float[2,8] y)
<float[8,8] weight>
{
    chosen = If (condition) <
        then_branch = yes () => (float[2,8] a) { p = MatMul (x, weight) a = Tanh (p) },
        else_branch = no () => (float[2,8] b) { b = Identity (x) }>
    y = Relu (chosen)
}
"""
"""One branch returns a captured value."""

SHAPES_DIFFER = """
main (float[2,8] x, bool condition) => (float[r,8] y)
<int64[1] start = {0}, int64[1] end = {1}>
{
    y = If (condition) <
        then_branch = yes () => (float[2,8] a) { a = Tanh (x) },
        else_branch = no () => (float[1,8] b) { b = Slice (x, start, end) }>
}
"""

GROWING = """
main (float[2,8] x, int64 trips) => (float[r,8] y)
{
    go = Constant <value = bool {1}> ()
    y = Loop (trips, go, x) <body = turn (int64 i, bool going, float[r,8] state)
        => (bool next_going, float[s,8] next) {
            next = Concat <axis = 0> (state, state)
            next_going = Identity (going)
        }>
}
"""
"""A carried value that doubles in every turn."""

SCAN = """
main (float[2,8] x, float[5,2,8] steps) => (float[2,8] last, float[2,5,8] rows)
<float[8,8] weight>
{
    last, rows = Scan <num_scan_inputs = 1, scan_input_directions = [1], scan_output_axes = [1],
        body = turn (float[2,8] state, float[2,8] step) => (float[2,8] next, float[2,8] row) {
            product = MatMul (state, weight)
            sum = Add (product, step)
            next = Tanh (sum)
            row = Relu (sum)
        }> (x, steps)
}
"""
"""A Scan that reads its input backwards and stacks its results along the second axis."""

NESTED = """
main (float[2,8] x, int64 trips) => (float[2,8] y)
<float[8,8] weight, int64 two = {2}>
{
    go = Constant <value = bool {1}> ()
    y = Loop (trips, go, x) <body = turn (int64 i, bool going, float[2,8] state)
        => (bool next_going, float[2,8] next) {
            inner = Loop (two, going, state) <body = inner_turn
                (int64 j, bool inner_going, float[2,8] part)
                => (bool inner_next, float[2,8] inner_part) {
                    product = MatMul (part, weight)
                    sum = Add (product, x)
                    inner_part = Tanh (sum)
                    inner_next = Identity (inner_going)
                }>
            next = Relu (inner)
            next_going = Identity (going)
        }>
}
"""
"""A loop in a loop; the inner one captures a value of the outermost graph."""


TWO_LOOPS = """
main (float[2,8] x, int64 trips) => (float[2,8] y)
<float[8,8] first, float[8,8] second>
{
    go = Constant <value = bool {1}> ()
    between = Loop (trips, go, x) <body = turn (int64 i, bool going, float[2,8] state)
        => (bool next_going, float[2,8] next) {
            product = MatMul (state, first)
            next = Tanh (product)
            next_going = Identity (going)
        }>
    y = Loop (trips, go, between) <body = turn (int64 j, bool running, float[2,8] value)
        => (bool next_running, float[2,8] next_value) {
            result = MatMul (value, second)
            next_value = Tanh (result)
            next_running = Identity (running)
        }>
}
"""
"""Two loops with bodies of one structure and different weights."""

READ_ROWS = """
main (float[2,8] x, int64 trips) => (float[8] y)
<int64[2] axes = {0, 1}>
{
    go = Constant <value = bool {1}> ()
    last, rows = Loop (trips, go, x) <body = turn (int64 i, bool going, float[2,8] state)
        => (bool next_going, float[2,8] next, float[2,8] row) {
            next = Tanh (state)
            row = Relu (state)
            next_going = Identity (going)
        }>
    y = ReduceSum <keepdims = 0> (rows, axes)
}
"""
"""Another operator reads stacked results of unknown length."""


def write_model(text: str, path: Path) -> Path:
    """Write the model of `text`, with random weights for the values that it only declares."""
    model = onnx.parser.parse_model(HEADER + text)
    generator = np.random.default_rng(0)
    for value in model.graph.value_info:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        weight = 0.4 * generator.standard_normal(shape)
        model.graph.initializer.append(
            onnx.numpy_helper.from_array(weight.astype(np.float32), value.name)
        )
    del model.graph.value_info[:]
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path
