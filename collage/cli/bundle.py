"""The commands `run` and `bench`. A bundle alone needs only the runtime extra."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from collage.cli.arguments import Commands, add_command, print_result
from collage.cli.signing import add_verify_options
from collage.entries import find_entries
from collage.errors import InputError, MeasureError, OptionError
from collage.option_text import parse_duration, parse_shapes
from collage.runtime.arrays import restored, save_arrays
from collage.runtime.function_names import fallback_name
from collage.runtime.golden_values import to_arrays

if TYPE_CHECKING:
    from collage.runtime.fallback import Fallback
    from collage.runtime.session import Outputs
    from collage.verify import Latency


def add_bundle_commands(commands: Commands) -> None:
    """Add the commands to the parser."""
    run = add_command(
        commands, "run", _run, "run a bundle on .npy inputs, or check its golden data"
    )
    run.add_argument("bundle", type=Path, help="bundle directory")
    run.add_argument("--input", action="append", default=[], metavar="NAME=FILE.npy",
                     help="value of an input; without inputs the golden data is checked")  # fmt: skip
    run.add_argument("--entry", help="entry of the bundle (default: the only one)")
    run.add_argument("--save", type=Path, metavar="FILE.npz", help="write the outputs to this file")
    add_verify_options(run)
    run.add_argument("--json", action="store_true", help="print one JSON document")
    bench = add_command(commands, "bench", _bench, "measure the latency of a bundle")
    bench.add_argument("bundle", type=Path, help="bundle directory")
    bench.add_argument("--seconds", type=parse_duration, default=3.0,
                       help="benchmark time of one function (default 3s)")  # fmt: skip
    bench.add_argument("--model", action="append", default=[], metavar="FILE|ENTRY=FILE",
                       help="original ONNX file: compare with the frameworks, interleaved")  # fmt: skip
    bench.add_argument("--shapes", action="append", default=[], metavar="INPUT=1,3,480",
                       help="shapes to measure instead of the compiled ones, and the way that each takes; "
                       "separate several inputs by ';'; repeat it for another set")  # fmt: skip
    bench.add_argument("--json", action="store_true", help="print one JSON document")


def _run(arguments: argparse.Namespace) -> int:
    from collage.runtime.loader import load

    bundle = load(arguments.bundle, arguments.verify_key)
    if not arguments.input:
        bundle.check()
        print_result(arguments.json, {"golden": "equal"}, "golden data: equal")
        return 0
    outputs = bundle.run(_read_inputs(arguments.input), arguments.entry)
    arrays = _plain_arrays(outputs, bundle.fallback(arguments.entry or bundle.entries[0]))
    if arguments.save:
        try:
            save_arrays(arguments.save, arrays)
        except OSError as error:
            raise InputError(f"--save {arguments.save}: {error.strerror}") from error
    shapes = {name: [str(value.dtype), list(value.shape)] for name, value in arrays.items()}
    lines = [f"{name}  {value.dtype}{list(value.shape)}" for name, value in arrays.items()]
    print_result(arguments.json, {"outputs": shapes}, "\n".join(lines))
    return 0


def _plain_arrays(outputs: "Outputs", fallback: "Fallback | None") -> dict[str, np.ndarray]:
    """Return the outputs as arrays of a file; a sequence or a map becomes several."""
    if fallback is None:
        return outputs
    return {
        name: array
        for value in fallback.outputs
        if value.name in outputs
        for name, array in to_arrays(value.name, outputs[value.name], value.type).items()
    }


def _read_inputs(options: list[str]) -> dict[str, np.ndarray]:
    """Read the arrays of `NAME=FILE.npy` options."""
    feeds = {}
    for option in options:
        name, separator, file = option.partition("=")
        if not separator:
            raise OptionError(f"--input {option}: write NAME=FILE.npy")
        try:
            feeds[name] = restored(np.load(file, allow_pickle=False))
        except (OSError, ValueError) as error:
            raise InputError(f"--input {name}: {file} is no .npy file: {error}") from error
    return feeds


def _bench(arguments: argparse.Namespace) -> int:
    if arguments.shapes:
        return _bench_shapes(arguments)
    if not arguments.model:
        return _bench_alone(arguments)
    from collage.pipeline import compare_bundle

    latencies = compare_bundle(arguments.bundle, find_entries(arguments.model), arguments.seconds)
    comparisons = {
        name: _comparison(arguments.bundle, function) for name, function in latencies.items()
    }
    has_several = len(comparisons) > 1
    lines = []
    for name, (_, rows) in comparisons.items():
        lines += [f"{name}:", *rows] if has_several else rows
    facts = {"functions": {name: facts for name, (facts, _) in comparisons.items()}}
    print_result(arguments.json, facts, "\n".join(lines))
    return 0


def _bench_shapes(arguments: argparse.Namespace) -> int:
    from collage.runtime.loader import load
    from collage.runtime.shape_benchmark import benchmark_shapes

    if arguments.model:
        raise OptionError("--shapes compares with the bundle's own fallback; leave --model out")
    shape_sets = parse_shapes(arguments.shapes)
    latencies = benchmark_shapes(load(arguments.bundle, warm=True), shape_sets, arguments.seconds)
    facts, rows = [], []
    for latency in latencies:
        shapes = "  ".join(f"{name}: {list(shape)}" for name, shape in latency.shapes.items())
        fallback_s = latency.fallback_seconds
        beside = "" if fallback_s is None else f"   fallback {fallback_s * 1e3:.3f} ms"
        rows.append(f"{shapes:<28}{latency.way:<10}{latency.seconds * 1e3:10.3f} ms{beside}")
        facts.append(
            {
                "shapes": {name: list(shape) for name, shape in latency.shapes.items()},
                "way": latency.way,
                "seconds": latency.seconds,
                "fallback_seconds": fallback_s,
            }
        )
    print_result(arguments.json, {"shapes": facts}, "\n".join(rows))
    return 0


PERCENTILES = ("seconds", "p90_seconds", "p99_seconds")


def _bench_alone(arguments: argparse.Namespace) -> int:
    from collage.runtime.loader import load

    bundle = load(arguments.bundle)
    names = [signature.function for signature in bundle.signatures]
    names += map(fallback_name, bundle.manifest.entries_without_functions)
    facts = {name: _distribution(bundle.latencies(arguments.seconds, name)) for name in names}
    rows = [f"{'function':<14}{'p50':>10}{'p90':>10}{'p99':>10}   calls per second"]
    for name, values in facts.items():
        cells = "".join(f"{values[key] * 1e3:7.3f} ms" for key in PERCENTILES)
        rows.append(f"{name:<14}{cells}{values['calls_per_second']:19.1f}")
    print_result(arguments.json, {"functions": facts}, "\n".join(rows))
    return 0


def _distribution(latencies: Sequence[float]) -> dict[str, float]:
    """Return the median and percentiles in seconds, and the rate of calls one after the other."""
    p50, p90, p99 = (float(value) for value in np.percentile(latencies, (50, 90, 99)))
    rate = len(latencies) / sum(latencies)
    return {"seconds": p50, "p90_seconds": p90, "p99_seconds": p99, "calls_per_second": rate}


def _comparison(
    bundle: Path, latencies: "Mapping[str, Latency]"
) -> tuple[dict[str, dict[str, object]], list[str]]:
    """Return the comparison of one function as facts by name, and as lines.

    Raises:
        MeasureError: the bundle does not run.
    """
    from collage.verify import ratio

    if reason := latencies["collage"].reason:
        raise MeasureError(f"{bundle} does not run here: {reason}")
    facts: dict[str, dict[str, object]] = {}
    rows: list[str] = []
    for name, latency in latencies.items():
        if latency.reason:
            facts[name] = {"seconds": None, "times": None, "reason": latency.reason}
            rows.append(f"{name:<14}{'-':>10}     {latency.reason}")
            continue
        times = ratio(latency, latencies["collage"])
        facts[name] = {"seconds": latency.seconds, "times": times, "reason": ""}
        rows.append(f"{name:<14}{latency.seconds * 1e3:10.3f} ms{times:8.3f} x")
    return facts, rows
