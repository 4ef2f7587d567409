"""Loops whose bodies are partitioned, against the whole loop on ONNX Runtime: `python -m benchmarks.loops`.

Each row is one `Loop` with a constant number of turns, batch 1. Its body is searched as in a compile, and the
plug-in drives it with each of the body's best plans. All kernels of a row run in turn, so that a change of
the machine's speed affects all of them; caches are not flushed, since a loop fills them itself. Times are
medians in microseconds of one call. The counting loop has one addition of a number as its body: its time
divided by its turns is what a turn costs besides the body's kernels.
"""

import argparse
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import onnx

from benchmarks.region_comparison import TimedKernel, measure
from collage.backends.base import Backend
from collage.backends.cpu.control_flow import ControlFlowBackend
from collage.backends.cpu.control_flow.body_plans import read_plans
from collage.backends.cpu.onnxruntime import OnnxRuntimeBackend
from collage.frontend import Function
from collage.frontend.inputs import load_reference
from collage.frontend.region import region_values
from collage.measure.callable_kernel import as_tensors, callable_kernel
from collage.options import Options
from collage.pipeline.bodies import BodyPartitioner
from collage.pipeline.compile_context import CompileContext, open_compile_context
from collage.pipeline.search_stage import imported, sampled
from collage.runtime.arrays import aligned_copy

HEADER = '<ir_version: 9, opset_import: ["" : 18]>\n'


@dataclass(frozen=True)
class LoopCase:
    """A loop: the shape of its carried value, its number of turns, and its body from `state` to `next`.

    `weights` are declarations of ONNX's text form; their values are random.
    """

    name: str
    shape: str
    turns: int
    body: str
    weights: str = ""

    def model(self) -> onnx.ModelProto:
        """Return a model of this loop alone."""
        weights = f"{self.weights}, " if self.weights else ""
        text = f"""
            main (float{self.shape} x) => (float{self.shape} y)
            <{weights}int64 turns = {{{self.turns}}}, bool go = {{1}}>
            {{
                y = Loop (turns, go, x) <body = turn (int64 i, bool going, float{self.shape} state)
                    => (bool next_going, float{self.shape} next) {{
                        {self.body}
                        next_going = Identity (going)
                    }}>
            }}"""
        model = onnx.parser.parse_model(HEADER + text)
        random = np.random.default_rng(0)
        for value in model.graph.value_info:
            shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
            weight = random.standard_normal(shape) / np.sqrt(max(1, np.prod(shape[1:])))
            tensor = onnx.numpy_helper.from_array(weight.astype(np.float32), value.name)
            model.graph.initializer.append(tensor)
        del model.graph.value_info[:]
        return model


CASES = (
    LoopCase("counting", "[1]", 1000, "next = Add (state, state)"),
    LoopCase(
        "elementwise", "[64,64]", 100,
        """a = Tanh (state) b = Mul (a, state) c = Sigmoid (b) d = Add (c, a) e = Sub (d, b)
        f = Relu (e) g = Mul (f, c) h = Add (g, state) next = Tanh (h)""",
    ),
    LoopCase(
        "gated cell", "[1,256]", 32,
        """p = MatMul (state, w1) q = Add (p, b1) gate = Sigmoid (q)
        r = MatMul (state, w2) s = Add (r, b2) value = Tanh (s)
        kept = Sub (state, value) scaled = Mul (gate, kept) next = Add (value, scaled)""",
        weights="float[256,256] w1, float[256] b1, float[256,256] w2, float[256] b2",
    ),
    LoopCase(
        "convolutions", "[1,32,48,48]", 8,
        """a = Conv <pads = [1,1,1,1]> (state, w1, b1) b = Relu (a)
        c = Conv <pads = [1,1,1,1]> (b, w2, b2) d = Add (c, state) next = Relu (d)""",
        weights="float[32,32,3,3] w1, float[32] b1, float[32,32,3,3] w2, float[32] b2",
    ),
)  # fmt: skip


def main() -> None:
    """Print a row for each loop."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="of each row's comparison")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of each body's search")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--backends", help="of the bodies; default: all")
    arguments = parser.parse_args()
    print(
        f"{'loop':<14}{'turns':>6}{'onnxruntime':>13}{'driven':>10}{'ratio':>8}{'us/turn':>9}  body on"
    )
    with tempfile.TemporaryDirectory() as folder:
        options = Options(
            backends=tuple(arguments.backends.split(",")) if arguments.backends else None,
            threads=arguments.threads,
            cache_dir=Path(folder) / "cache",
            measure_budget_s=arguments.budget,
            tune_s=0,
        )
        for case in CASES:
            print(row(case, options, Path(folder), arguments.seconds), flush=True)


def row(case: LoopCase, options: Options, folder: Path, seconds: float) -> str:
    """Partition the body of a loop, and compare its kernels with ONNX Runtime's."""
    path = folder / "loop.onnx"
    onnx.save(case.model(), path)
    with open_compile_context(options) as context:
        model = imported(path, context)
        (function,) = model.functions
        samples = sampled(model, function, context)
        BodyPartitioner(model, context).partition(function, samples.reference_dir)
        values = load_reference(samples.reference_dir)
        plans = read_plans(context.bodies_dir, function.name, 0)
        assert plans is not None, context.notes
        driven = ControlFlowBackend(context.bodies_dir, function.name)
        variants = [plan.variant for plan in plans.plans]
        targets = [
            *kernels(function, OnnxRuntimeBackend(), ("",), values=values, context=context),
            *kernels(function, driven, variants, values=values, context=context),
        ]
        measure(targets, None, seconds)
    whole_us = targets[0].microseconds
    best = min(range(len(variants)), key=lambda place: targets[1 + place].microseconds)
    driven_us = targets[1 + best].microseconds
    backends = ", ".join(plans.plans[best].backends)
    return (
        f"{case.name:<14}{case.turns:>6}{whole_us:>13.1f}{driven_us:>10.1f}"
        f"{whole_us / driven_us:>7.2f}x{driven_us / case.turns:>9.2f}  {backends}"
    )


def kernels(
    function: Function,
    backend: Backend,
    variants: Sequence[str],
    *,
    values: dict[str, np.ndarray],
    context: CompileContext,
) -> list[TimedKernel]:
    """Build the loop with a backend in the variants, with buffers of the reference values."""
    inputs, outputs = region_values(function, 1)
    targets = []
    for variant in variants:
        kernel = backend.compile(function, 1, context.build, variant)
        call, constants = callable_kernel(kernel, context.threads)
        arrays = [values[name] for name in inputs]
        arrays += [*constants, *(values[name] for name in outputs)]
        tensors = as_tensors([aligned_copy(array) for array in arrays])
        run: Callable[[], object] = partial(call, *tensors)
        targets.append(TimedKernel(f"{backend.name} {variant}".strip(), run, []))
    return targets


if __name__ == "__main__":
    main()
