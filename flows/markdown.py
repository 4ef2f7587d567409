"""Rows and markdown of artifacts: the facts of the terminal and the report, for Prefect's pages."""

from collections.abc import Sequence

from collage.pipeline.request import CompileResult, FunctionCompileResult, SearchResult
from collage.report.formatting import MISSING, duration, printable
from flows.cost import RunCost
from flows.results import Outcome

ALTERNATIVES = 10


def plan_rows(facts: SearchResult) -> list[dict[str, str | int]]:
    """Return one row for each plan, the best first."""
    return [
        {
            "plan": printable(plan.name),
            "predicted": duration(plan.predicted_s),
            "regions": plan.regions,
            "backends": ", ".join(plan.backends),
        }
        for plan in facts.plans[:ALTERNATIVES]
    ]


def result_rows(outcomes: Sequence[Outcome]) -> list[dict[str, str | int | float]]:
    """Return one row for each environment of a run; the exporter of metrics reads these columns."""
    return [
        {
            "environment": outcome.environment,
            "status": outcome.status,
            "speed-up": f"{outcome.speedup:.2f}" if outcome.speedup else MISSING,
            "measured": outcome.result.measured if outcome.result else 0,
            "from the store": outcome.result.cached if outcome.result else 0,
            "given up": "yes" if outcome.given_up else "no",
            "node seconds": round(outcome.cost.node_seconds, 3) if outcome.cost else 0,
            "GPU seconds": round(outcome.cost.gpu_seconds, 3) if outcome.cost else 0,
            "reason": printable(outcome.reason),
        }
        for outcome in outcomes
    ]


def summary_markdown(model: str, version: str, outcome: Outcome) -> str:
    """Return the verdict, the latencies and the number of measurements as markdown."""
    title = f"## {_cell(model)} {_cell(version)} on {_cell(outcome.environment)}: {outcome.status}"
    parts = [title, _cell(outcome.reason)]
    if outcome.result:
        parts += [_latencies(outcome.result), _work(outcome.result)]
    if outcome.cost:
        parts.append(cost_text(outcome.cost))
    if outcome.bundle:
        parts.append(f"`collage fetch STORE {outcome.alias}` brings bundle `{outcome.bundle}`")
    return "\n\n".join(part for part in parts if part)


def cost_text(cost: RunCost) -> str:
    """Return the cost of a run in words."""
    text = f"cost: {cost.node_seconds:,.1f} node-seconds, {cost.gpu_seconds:,.1f} GPU-seconds"
    return text if cost.price is None else f"{text}, price {cost.price:,.4f}"


def _latencies(result: CompileResult) -> str:
    several = len(result.functions) > 1
    return "\n\n".join(_table(function, several=several) for function in result.functions)


def _table(function: FunctionCompileResult, *, several: bool) -> str:
    """Return the latencies of one function, with name and verdict if the model has several."""
    ours_s = function.latency_s.get("collage")
    rows = [f"| **collage** | **{duration(ours_s)}** | |"]
    frameworks = {
        name: seconds for name, seconds in function.latency_s.items() if name != "collage"
    }
    for name, seconds in sorted(
        frameworks.items(), key=lambda pair: (pair[1] is None, pair[1] or 0.0)
    ):
        ratio = f"{seconds / ours_s:.2f}x" if seconds and ours_s else MISSING
        rows.append(f"| {_cell(name)} | {duration(seconds)} | {ratio} |")
    title = [f"### {_cell(function.function)}: {_cell(function.verdict)}", ""] if several else []
    return "\n".join([*title, "| | median | slower by |", "|---|---:|---:|", *rows])


def _work(result: CompileResult) -> str:
    seconds = sum(result.seconds.values())
    return (
        f"{result.measured} candidates measured, {result.cached} from the store, "
        f"{result.invalid} invalid; the finish took {duration(seconds)}"
    )


def _cell(text: str) -> str:
    return printable(text).replace("|", "\\|").replace("`", "'")
