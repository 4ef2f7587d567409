"""The command `compile`."""

import argparse
from pathlib import Path

from collage.cli.arguments import (
    Commands,
    add_command,
    duration,
    parse_dims,
    parse_shapes,
    size,
)
from collage.errors import OptionError
from collage.options import DEFAULT_TOLERANCE, DEVICES, EFFORTS, Options, Precision


def add_compile_command(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = add_command(commands, "compile", _compile, "compile an ONNX model into a bundle")
    parser.add_argument("model", type=Path, help="ONNX file")
    parser.add_argument(
        "-o", "--output", type=Path, help="bundle directory (default: MODEL.collage)"
    )
    _add_shape_options(parser)
    _add_target_options(parser)
    _add_search_options(parser)
    _add_gate_options(parser)
    parser.add_argument("--cache-dir", type=Path, help="local store (default: the user's cache)")
    parser.add_argument(
        "--store", metavar="STORE", help="shared store of costs: a directory or s3://bucket/prefix"
    )
    parser.add_argument(
        "--json", action="store_true", help="print the summary as one JSON document"
    )
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def _add_shape_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dim", action="append", default=[], metavar="NAME=N", help="bind a named dimension"
    )
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="INPUT=1,3,480,480",
        help="bind the shape of an input; separate several inputs by ';'; repeat --shape of the "
        "same input for another shape set",
    )


def _add_target_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--backends", metavar="A,B",
        help="backend names, or module:Class of a backend that is not installed "
        "(default: all available backends)",
    )  # fmt: skip
    parser.add_argument("--device", choices=DEVICES, default="cpu",
                        help="target device (default cpu)")  # fmt: skip
    parser.add_argument(
        "--no-cuda-graphs", action="store_true", help="launch kernels without CUDA graphs"
    )
    parser.add_argument(
        "--threads", type=int, help="threads of one call (default: one per physical core)"
    )
    parser.add_argument("--precision", choices=[*Precision], default=Precision.FP32,
                        help="auto: allow bfloat16, on a GPU TF32, within --tolerance "
                        "(default fp32)")  # fmt: skip
    parser.add_argument("--tolerance", type=float, metavar="0.01",
                        help="with --precision auto: largest error of an output relative to its "
                        f"scale (default {DEFAULT_TOLERANCE})")  # fmt: skip


def _add_search_options(parser: argparse.ArgumentParser) -> None:
    defaults = Options()
    parser.add_argument("--effort", choices=EFFORTS, default="normal",
                        help="time budget of the search (default normal)")  # fmt: skip
    parser.add_argument("--budget", type=duration, metavar="120s|2m",
                        help="time for measuring candidates (default: set by --effort)")  # fmt: skip
    parser.add_argument("--refine", type=duration, metavar="40s",
                        help="time for refining whole plans (default: set by --effort)")  # fmt: skip
    parser.add_argument("--tune", type=duration, metavar="60s",
                        help="time for tuning kernels; 0s disables tuning "
                        "(default: set by --effort)")  # fmt: skip
    parser.add_argument(
        "--workers", type=int, default=defaults.workers,
        help=f"worker processes (default {defaults.workers})",
    )  # fmt: skip
    parser.add_argument("--timeout", type=duration, default=defaults.timeout_s, metavar="30s",
                        help="hard time limit of one candidate")  # fmt: skip
    parser.add_argument("--memory", type=size, default=defaults.memory_bytes, metavar="4GiB",
                        help="hard memory limit of one worker process")  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="seed of the random inputs (default 0)")


def _add_gate_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--verify", type=duration, default=Options().verify_s, metavar="2s",
                        help="benchmark time per plan or framework in the final comparison; up to ten "
                        "times as long while the result is inconclusive")  # fmt: skip
    parser.add_argument("--no-fallback", action="store_true",
                        help="never ship the original model on the fastest framework")  # fmt: skip
    parser.add_argument("--allow-slower", action="store_true",
                        help="write the bundle even if it is not proven as fast as the frameworks; "
                        "publish, alias and serve refuse it")  # fmt: skip


def _compile(arguments: argparse.Namespace) -> int:
    from collage.pipeline import compile_model
    from collage.report.terminal import TerminalProgress, print_summary

    output = arguments.output or Path(arguments.model.stem + ".collage")
    progress = TerminalProgress(quiet=arguments.quiet)
    summary = compile_model(arguments.model, _options(arguments), output, progress)
    if arguments.json:
        print(summary.to_json())
    else:
        print_summary(summary)
    return 0


def _options(arguments: argparse.Namespace) -> Options:
    if arguments.tolerance is not None and arguments.precision == Precision.FP32:
        raise OptionError("--tolerance has no meaning with --precision fp32: add --precision auto")
    effort = EFFORTS[arguments.effort]
    return Options(
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
