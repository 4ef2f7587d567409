"""Search of models that call one local function again and again: `python -m benchmarks.local_functions`.

Each row is a chain of calls of one function, with weights of their own. It is searched twice: with an empty
store, and with the store that the rows of fewer calls have filled. `nodes` are those after inlining,
`candidates` all of the function, `unique` those that differ, `in a call` the unique ones within one call.
`measured` counts the empty store's, `added` those that the rows before have not measured. The numbers of
candidates do not depend on the machine; with a budget (`--budget`), the measured ones do.
"""

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx

from collage.graph.index_set import is_subset
from collage.options import EFFORTS, Options
from collage.pipeline.compile_context import open_compile_context
from collage.pipeline.search_stage import (
    enumerated_function,
    imported,
    local_measurer,
    sampled,
    search_with_measurements,
)
from collage.search.enumeration import EnumeratedFunction

MODEL_HEADER = '<ir_version: 9, opset_import: ["" : 18, "local" : 1]>\n'
COLUMNS = (
    "function", "calls", "nodes", "candidates", "unique", "in a call", "measured", "added", "search s",
)  # fmt: skip


@dataclass(frozen=True)
class FunctionCase:
    """A local function from `state` and its weights to `next`, and the shape of its state.

    `weights` are names and shapes of the function's further parameters; each call has its own random values.
    """

    name: str
    shape: tuple[int, ...]
    body: str
    weights: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def model(self, calls: int) -> onnx.ModelProto:
        """Return a model of a chain of calls."""
        shape = ",".join(map(str, self.shape))
        parameters = ", ".join(["state", *(name for name, _ in self.weights)])
        values = ["x", *(f"v{call}" for call in range(1, calls)), "y"]
        chain = "\n".join(
            f"{values[call + 1]} = local.block ("
            + ", ".join([values[call], *(f"{name}_{call}" for name, _ in self.weights)])
            + ")"
            for call in range(calls)
        )
        model = onnx.parser.parse_model(
            f"""{MODEL_HEADER} main (float[{shape}] x) => (float[{shape}] y) {{ {chain} }}
            <domain: "local", opset_import: ["" : 18]>
            block ({parameters}) => (next) {{ {self.body} }}"""
        )
        random = np.random.default_rng(0)
        for call in range(calls):
            for name, extents in self.weights:
                weight = random.standard_normal(extents) / np.sqrt(max(1, extents[0]))
                tensor = onnx.numpy_helper.from_array(weight.astype(np.float32), f"{name}_{call}")
                model.graph.initializer.append(tensor)
        return model


CASES = (
    FunctionCase(
        "transformer", (16, 64),
        """n = LayerNormalization <axis = -1> (state, g1, b1)
        q = MatMul (n, wq) k = MatMul (n, wk) v = MatMul (n, wv)
        t = Transpose <perm = [1, 0]> (k) s = MatMul (q, t) p = Softmax <axis = -1> (s)
        c = MatMul (p, v) o = MatMul (c, wo) a = Add (state, o)
        m = LayerNormalization <axis = -1> (a, g2, b2)
        u = MatMul (m, w1) r = Relu (u) d = MatMul (r, w2) next = Add (a, d)""",
        (
            ("g1", (64,)), ("b1", (64,)), ("wq", (64, 64)), ("wk", (64, 64)), ("wv", (64, 64)),
            ("wo", (64, 64)), ("g2", (64,)), ("b2", (64,)), ("w1", (64, 256)), ("w2", (256, 64)),
        ),
    ),
    FunctionCase(
        "elementwise", (64, 64),
        "a = Tanh (state) b = Mul (a, a) c = Sigmoid (b) next = Sub (c, a)",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class SearchCounts:
    """What a search of one model counts; `in_call` are unique candidates within one call."""

    nodes: int
    candidates: int
    unique: int
    in_call: int
    measured: int
    search_s: float


def main() -> None:
    """Print a row for each function and number of calls."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", default="1,2,4,8")
    parser.add_argument("--budget", type=float, default=EFFORTS["quick"].measure_budget_s)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--backends", help="default: all")
    arguments = parser.parse_args()
    print("".join(f"{column:>12}" for column in COLUMNS))
    options = Options(
        backends=tuple(arguments.backends.split(",")) if arguments.backends else None,
        threads=arguments.threads,
        measure_budget_s=arguments.budget,
        tune_s=0,
    )
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            for line in rows(case, [*map(int, arguments.calls.split(","))], options, Path(folder)):
                print(line, flush=True)


def rows(case: FunctionCase, calls: Sequence[int], options: Options, folder: Path) -> list[str]:
    """Return a row for each number of calls, ascending."""
    lines = []
    for count in calls:
        path = folder / f"{count}.onnx"
        onnx.save(case.model(count), path)
        empty, filled = (
            search(path, count, replace(options, cache_dir=folder / store))
            for store in (f"store-{count}", "store")
        )
        cells = (
            case.name, count, empty.nodes, empty.candidates, empty.unique, empty.in_call,
            empty.measured, filled.measured, f"{empty.search_s:.2f}",
        )  # fmt: skip
        lines.append("".join(f"{cell:>12}" for cell in cells))
    return lines


def search(path: Path, calls: int, options: Options) -> SearchCounts:
    """Search the model at `path`, and count."""
    with open_compile_context(options) as context:
        model = imported(path, context)
        (function,) = model.functions
        samples = sampled(model, function, context)
        enumerated = enumerated_function(function, context)
        measurer = local_measurer(function, samples.reference_dir, context)
        search_with_measurements(enumerated, measurer, context)
        return SearchCounts(
            nodes=len(function.graph),
            candidates=len(enumerated.candidates),
            unique=len(enumerated.work),
            in_call=_unique_in_calls(enumerated, calls),
            measured=context.counts.measured,
            search_s=context.seconds.stages["search"],
        )


def _unique_in_calls(enumerated: EnumeratedFunction, calls: int) -> int:
    """Count the different candidates that lie within one call."""
    size = len(enumerated.function.graph) // calls
    blocks = [((1 << size) - 1) << size * call for call in range(calls)]
    keys = {
        option.key
        for option in enumerated.problem.options
        if option.key in enumerated.work and any(is_subset(option.nodes, block) for block in blocks)
    }
    return len(keys)


if __name__ == "__main__":
    main()
