"""Speedup of mixed precision within a tolerance: compile with `--precision auto` and compare.

    python -m benchmarks.precision [--models resnet18] [--tolerance 0.01]

Every model is compiled with bfloat16 allowed, and the saved bundle is measured interleaved with the
original frameworks: onnxruntime and openvino in float32, and openvino in bfloat16. The error of an output
is max |actual - fp32| / max |fp32|, probabilities with a scale of 1, the largest over the gate's inputs and
ten more seeds. A framework beyond the tolerance is shown in brackets: "over best" includes it, "over
allowed" does not. Within 0.15 openvino's bfloat16 is allowed on every model of the set, so both columns
agree there. Compiles use the cost tables under `--work`, so float32 costs of `benchmarks.models` there are
not measured again.
"""

import math
from argparse import Namespace

from benchmarks.model_set import chosen_models, model_options
from benchmarks.models import backend_counts, geometric_mean, measure, speedups
from benchmarks.results import Facts, machine, revisions, write_rows

FRAMEWORKS = ("onnxruntime", "openvino", "openvino-bf16")
PRECISION_HEADER = (
    "| model | collage ms | onnxruntime ms | openvino ms | openvino bf16 ms | over best | over allowed "
    "| error | error of openvino bf16 | regions in bf16 | plans beyond | plan |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|---|"
)


def row(facts: Facts) -> tuple[str, float, float, float]:
    """Format one table row; also return the speedups over all and allowed frameworks, and the error."""
    result = facts["compile"]["precision"]
    seconds = {name: result["seconds"] for name, result in facts["bench"].items()}
    ran = speedups(facts["bench"])
    over_best = min(ran.values())
    over_allowed = min(times for name, times in ran.items() if name not in result["excused"])
    error = max(error if error is not None else math.inf for error in result["errors"].values())
    cells = [
        facts["model"], _ms(seconds["collage"]),
        *(_shown(name, seconds.get(name), result["excused"]) for name in FRAMEWORKS),
        f"{over_best:.3f}", f"{over_allowed:.3f}", f"{error:.2g}",
        _error(result["baselines"].get("openvino-bf16")),
        f"{result['reduced_regions']} of {len(facts['plan'])}", str(len(result["rejected"])),
        backend_counts(facts["plan"]),
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |", over_best, over_allowed, error


def _shown(name: str, seconds: float | None, excused: dict[str, str]) -> str:
    return f"({_ms(seconds)})" if name in excused else _ms(seconds)


def _ms(seconds: float | None) -> str:
    return f"{seconds * 1e3:.2f}" if seconds else "refused"


def _error(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}"


def document(all_facts: list[Facts], arguments: Namespace) -> str:
    """Write the table of all models with the machine and the means."""
    tolerance = arguments.tolerance
    rows, over_best, over_allowed, errors = zip(*map(row, all_facts), strict=True)
    return (
        f"## Precision within {tolerance:g}\n\n"
        f"`python -m benchmarks.precision --threads {arguments.threads} --tolerance {tolerance:g}` on "
        f"{machine()}{revisions(all_facts)}.\n\n"
        + "\n".join([PRECISION_HEADER, *rows])
        + f"\n\nGeometric mean over the best of openvino bf16 and the fp32 toolchains: "
        f"**{geometric_mean(over_best):.3f}** (lowest {min(over_best):.3f}); over those within the "
        f"tolerance: **{geometric_mean(over_allowed):.3f}** (lowest {min(over_allowed):.3f}); "
        f"{len(rows)} models. Largest error of an output: {max(errors):.2g} of {tolerance:g} allowed.\n"
    )


def main() -> None:
    parser = model_options(__doc__)
    parser.add_argument("--tolerance", type=float, default=0.01)
    parser.add_argument("extra", nargs="*", help="further options of `collage compile`, after --")
    arguments = parser.parse_args()
    permission = ["--precision", "auto", "--tolerance", str(arguments.tolerance)]
    extra = [*permission, *arguments.extra]
    measured = (
        measure(model, arguments.work, arguments.threads, extra, warm=False)
        for model in chosen_models(arguments.work, arguments.models)
    )
    write_rows(arguments, f"precision-{arguments.tolerance:g}", measured, document)


if __name__ == "__main__":
    main()
