"""The command line: parse, call, show. Exit codes are those of `collage.errors`.

`run` and `bench` of a bundle need the runtime extra alone; everything else is imported on demand.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import collage
from collage.cli.arguments import command, duration, parse_dims, parse_shapes, say, size
from collage.cli.candidates import add_candidates_command
from collage.cli.errors import Parser, run_command, wants_json
from collage.cli.registry import add_registry_commands
from collage.cli.signing import add_verify_options
from collage.cli.store import add_store_commands
from collage.errors import EXIT_CODES, InputError, MeasureError, OptionError
from collage.options import DEFAULT_TOLERANCE, DEVICES, EFFORTS, Options, Precision
from collage.runtime.arrays import restored, save_arrays

if TYPE_CHECKING:
    from collage.verify import Latency


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    With --json standard output holds one JSON document, whether the command succeeds or not.
    """
    given = sys.argv[1:] if arguments is None else arguments

    def act() -> int:
        parsed = _parser().parse_args(given)
        return int(parsed.run(parsed))

    return run_command(act, as_json=wants_json(given))


def _parser() -> argparse.ArgumentParser:
    codes = "\n".join(f"  {code:<5}{meaning}" for code, meaning in EXIT_CODES.items())
    parser: argparse.ArgumentParser = Parser(
        prog="collage",
        description="Compile an ONNX model with the toolchain that measures fastest, region by region.",
        epilog=f"exit codes:\n{codes}\n\nWith --json a command prints one JSON document on standard output;"
        '\none that fails prints {"error": {"exit_code", "reason", "advice"}}.',
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"collage {collage.__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _compile_command(commands)
    _run_command(commands)
    _bench_command(commands)
    report = command(
        commands, "report", _report, "print the path of a bundle's report, or its facts"
    )
    report.add_argument("bundle", type=Path)
    report.add_argument("--json", action="store_true", help="the summary as one JSON document")
    explained = command(commands, "explain", _explain, "say why a bundle's plan is what it is")
    explained.add_argument("bundle", type=Path)
    explained.add_argument("--node", metavar="N", help="a node's name or number")
    explained.add_argument("--function", help="where the node is (default: the first that has it)")
    explained.add_argument("--json", action="store_true")
    compared = command(commands, "diff", _diff, "compare the plans of two bundles")
    compared.add_argument("first", type=Path, metavar="A")
    compared.add_argument("second", type=Path, metavar="B")
    compared.add_argument("--json", action="store_true")
    backends = command(commands, "backends", _backends, "list backends, versions, and why not")
    backends.add_argument("--json", action="store_true")
    doctor = command(commands, "doctor", _doctor, "check this machine and the store")
    doctor.add_argument("--cache-dir", type=Path)
    doctor.add_argument("--store", metavar="STORE", help="check this shared store too")
    doctor.add_argument("--json", action="store_true")
    add_candidates_command(commands)
    add_store_commands(commands)
    add_registry_commands(commands)
    return parser


def _compile_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = command(commands, "compile", _compile, "compile an ONNX model into a bundle")
    defaults = Options()
    parser.add_argument("model", type=Path, help="the ONNX file")
    parser.add_argument("-o", "--output", type=Path, help="bundle folder (default: MODEL.collage)")
    parser.add_argument(
        "--dim", action="append", default=[], metavar="NAME=N", help="bind a named dimension"
    )
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="INPUT=1,3,480,480",
        help="bind an input's shape; several inputs are separated by ';'; each --shape of an input "
        "that already has one starts another shape set",
    )
    parser.add_argument(
        "--backends", metavar="A,B",
        help="names, or module:Class of one that is not installed; default: all that are available",
    )  # fmt: skip
    parser.add_argument("--device", choices=DEVICES, default="cpu", help="where kernels run (cpu)")
    parser.add_argument("--no-cuda-graphs", action="store_true", help="launch every kernel alone")
    parser.add_argument("--threads", type=int, help="default: one a physical core")
    parser.add_argument(
        "--effort", choices=EFFORTS, default="normal", help="how long to search (default normal)"
    )
    parser.add_argument("--budget", type=duration, metavar="120s|2m",
                        help="time for measuring candidates (default: the effort's)")  # fmt: skip
    parser.add_argument("--refine", type=duration, metavar="40s",
                        help="time for improving whole plans (default: the effort's)")  # fmt: skip
    parser.add_argument("--tune", type=duration, metavar="60s",
                        help="time for tuning kernels; 0s tries none (default: the effort's)")  # fmt: skip
    parser.add_argument("--verify", type=duration, default=defaults.verify_s, metavar="2s",
                        help="time that each contender is timed at the end, up to ten times where "
                        "nothing is proven before")  # fmt: skip
    parser.add_argument("--no-fallback", action="store_true",
                        help="never ship the original file, run as the fastest framework does")  # fmt: skip
    parser.add_argument("--allow-slower", action="store_true",
                        help="write the bundle though it is not proven as fast as the frameworks; "
                        "publish, alias and serve refuse it")  # fmt: skip
    parser.add_argument("--workers", type=int, default=defaults.workers)
    parser.add_argument("--timeout", type=duration, default=defaults.timeout_s, metavar="30s",
                        help="hard limit of one candidate")  # fmt: skip
    parser.add_argument("--memory", type=size, default=defaults.memory_bytes, metavar="4GiB",
                        help="hard limit of one worker")  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="of the random inputs")
    parser.add_argument("--precision", choices=[*Precision], default=Precision.FP32,
                        help="auto: allow bfloat16, on a GPU TF32, within --tolerance "
                        "(default fp32)")  # fmt: skip
    parser.add_argument("--tolerance", type=float, metavar="0.01",
                        help="with auto: largest error of an output, as a share of its scale "
                        f"(default {DEFAULT_TOLERANCE})")  # fmt: skip
    parser.add_argument("--cache-dir", type=Path, help="the local store")
    parser.add_argument(
        "--store", metavar="STORE", help="share costs through this folder or s3://bucket/prefix"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def _run_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = command(commands, "run", _run, "run a bundle on .npy inputs, or check its golden data")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--input", action="append", default=[], metavar="NAME=FILE.npy")
    parser.add_argument("--save", type=Path, metavar="FILE.npz", help="write the outputs there")
    add_verify_options(parser)
    parser.add_argument("--json", action="store_true")


def _bench_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = command(commands, "bench", _bench, "time a bundle")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--seconds", type=duration, default=3.0)
    parser.add_argument("--model", type=Path, help="the original ONNX file: compare interleaved")
    parser.add_argument("--json", action="store_true")


def _compile(arguments: argparse.Namespace) -> int:
    from collage.pipeline import compile_model
    from collage.report.terminal import Progress, print_summary

    if arguments.tolerance is not None and arguments.precision == Precision.FP32:
        raise OptionError("--tolerance has no meaning with --precision fp32: add --precision auto")
    effort = EFFORTS[arguments.effort]
    options = Options(
        backends=None if arguments.backends is None else tuple(arguments.backends.split(",")),
        device=arguments.device,
        cuda_graphs=not arguments.no_cuda_graphs,
        threads=arguments.threads,
        dims=parse_dims(arguments.dim),
        shapes=parse_shapes(arguments.shape),
        measure_budget_s=effort.measure_budget_s if arguments.budget is None else arguments.budget,
        refine_s=effort.refine_s if arguments.refine is None else arguments.refine,
        tune_s=effort.tune_s if arguments.tune is None else arguments.tune,
        workers=arguments.workers,
        timeout_s=arguments.timeout,
        memory_bytes=arguments.memory,
        verify_s=arguments.verify,
        fallback=not arguments.no_fallback,
        allow_slower=arguments.allow_slower,
        seed=arguments.seed,
        precision=arguments.precision,
        tolerance=DEFAULT_TOLERANCE if arguments.tolerance is None else arguments.tolerance,
        cache_dir=arguments.cache_dir,
        store=arguments.store,
    )
    output = arguments.output or Path(arguments.model.stem + ".collage")
    progress = Progress(quiet=arguments.quiet)
    summary = compile_model(arguments.model, options, output, progress)
    if arguments.json:
        print(summary.to_json())
    else:
        print_summary(summary)
    return 0


def _run(arguments: argparse.Namespace) -> int:
    from collage.runtime.loader import load

    bundle = load(arguments.bundle, arguments.verify_key)
    if not arguments.input:
        bundle.check()
        say(arguments.json, {"golden": "equal"}, "golden data: equal")
        return 0
    feeds = {}
    for text in arguments.input:
        name, found, file = text.partition("=")
        if not found:
            raise OptionError(f"--input {text}: write NAME=FILE.npy")
        try:
            feeds[name] = restored(np.load(file, allow_pickle=False))
        except (OSError, ValueError) as error:
            raise InputError(f"--input {name}: {file} is no .npy file: {error}") from error
    outputs = bundle.run(feeds)
    if arguments.save:
        try:
            save_arrays(arguments.save, outputs)
        except OSError as error:
            raise InputError(f"--save {arguments.save}: {error.strerror}") from error
    shapes = {name: [str(value.dtype), list(value.shape)] for name, value in outputs.items()}
    lines = [f"{name}  {value.dtype}{list(value.shape)}" for name, value in outputs.items()]
    say(arguments.json, {"outputs": shapes}, "\n".join(lines))
    return 0


def _bench(arguments: argparse.Namespace) -> int:
    if arguments.model is None:
        from collage.runtime.loader import load

        bundle = load(arguments.bundle)
        names = [one.function for one in bundle.signatures]
        seconds = {name: bundle.benchmark(arguments.seconds, name) for name in names}
        rows = [f"{name:<14}{one * 1e3:10.3f} ms" for name, one in seconds.items()]
        facts = {name: {"seconds": one} for name, one in seconds.items()}
        say(arguments.json, {"functions": facts}, "\n".join(rows))
        return 0
    from collage.pipeline import compare_bundle

    found = compare_bundle(arguments.bundle, arguments.model, arguments.seconds)
    compared = {name: _compared(arguments.bundle, one) for name, one in found.items()}
    several = len(compared) > 1
    lines = []
    for name, (_, rows) in compared.items():
        lines += [f"{name}:", *rows] if several else rows
    say(
        arguments.json,
        {"functions": {name: facts for name, (facts, _) in compared.items()}},
        "\n".join(lines),
    )
    return 0


def _compared(
    bundle: Path, found: "Mapping[str, Latency]"
) -> tuple[dict[str, dict[str, object]], list[str]]:
    """Return a comparison of one function as facts by name, and as lines.

    Raises:
        MeasureError: the bundle does not run.
    """
    from collage.verify import ratio

    if reason := found["collage"].reason:
        raise MeasureError(f"{bundle} does not run here: {reason}")
    facts: dict[str, dict[str, object]] = {}
    rows: list[str] = []
    for name, latency in found.items():
        if latency.reason:
            facts[name] = {"seconds": None, "times": None, "reason": latency.reason}
            rows.append(f"{name:<14}{'-':>10}     {latency.reason}")
            continue
        times = ratio(latency, found["collage"])
        facts[name] = {"seconds": latency.seconds, "times": times, "reason": ""}
        rows.append(f"{name:<14}{latency.seconds * 1e3:10.3f} ms{times:8.3f} x")
    return facts, rows


def _report(arguments: argparse.Namespace) -> int:
    from collage.report.explanation import read_summary

    page = arguments.bundle / "report.html"
    if not page.is_file():
        raise InputError(f"{arguments.bundle} holds no report; is it a bundle?")
    print(read_summary(arguments.bundle).to_json() if arguments.json else page.resolve())
    return 0


def _explain(arguments: argparse.Namespace) -> int:
    from collage.report.explain_text import node_text, overview_text
    from collage.report.explanation import explain_node, overview, read_report

    data = read_report(arguments.bundle)
    if arguments.node is None:
        whole = overview(data)
        print(whole.model_dump_json() if arguments.json else overview_text(whole))
        return 0
    node = explain_node(data, arguments.node, arguments.function)
    print(node.model_dump_json() if arguments.json else node_text(node))
    return 0


def _diff(arguments: argparse.Namespace) -> int:
    from collage.report.explain_text import diff_text
    from collage.report.explanation import diff, read_report

    found = diff(read_report(arguments.first), read_report(arguments.second))
    print(found.model_dump_json() if arguments.json else diff_text(found))
    return 0


def _backends(arguments: argparse.Namespace) -> int:
    from collage.backends.registry import all_backends
    from collage.report.terminal import print_backends

    rows = [
        (backend.name, backend.style.value, backend.device, backend.availability())
        for backend in all_backends()
    ]
    if arguments.json:
        facts = [
            {"name": name, "style": style, "device": device, "available": found.available,
             "libraries": dict(found.libraries), "reason": found.reason}
            for name, style, device, found in rows
        ]  # fmt: skip
        print(json.dumps({"backends": facts}))
        return 0
    print_backends(rows)
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    from collage.pipeline import doctor

    checks = doctor(Options(cache_dir=arguments.cache_dir, store=arguments.store))
    failed = [check for check in checks if not check.passed]
    facts = [{"check": c.name, "passed": c.passed, "detail": c.detail} for c in checks]
    lines = [f"{'ok' if c.passed else 'NO':<4}{c.name:<22}{c.detail}" for c in checks]
    say(arguments.json, {"checks": facts}, "\n".join(lines))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
