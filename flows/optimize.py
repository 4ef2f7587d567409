"""`optimize_model`: a version of a model becomes one proven bundle for every environment.

    import      registry or file -> store, one request for each environment
    probe    probe of the nodes; a request with a result for such a node ends here
    search      one partition search for each function, mapped; costs pass through the store
    finish      assemble, compare whole, gate, publish: on the target node
    publish     alias of the version, if the gate accepts the bundle
    conclude    alias `optimized` after all gates have passed, then the registry's tags, last

Every task can be repeated at any moment: the keys of costs, search checkpoints, results and bundles in the
store depend on their inputs. So the tasks have no Prefect cache, exchange small pydantic models only, and
are retried after failures of infrastructure alone. A measuring task holds a slot of the environment's
concurrency limit: two runs never measure the same candidate, and the later one finds the records of the
earlier one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from prefect import flow, get_run_logger, unmapped
from prefect.client.schemas.objects import State
from prefect.futures import PrefectFuture
from prefect.runtime import flow_run
from prefect.states import Completed, Failed
from prefect.task_runners import ThreadPoolTaskRunner

from collage.options import DeviceName
from collage.pipeline.model_source import is_address
from collage.pipeline.request import (
    CompileRequest,
    CompileResult,
    NodeInformation,
    RequestOptions,
    SearchResult,
)
from collage.pipeline.results import node_digest, read_result
from collage.registry import VersionStatus
from collage.store import open_store
from flows import artifacts
from flows.cancellation import end_jobs, note_requests
from flows.cost import run_cost
from flows.environments import open_compile_service
from flows.names import OVER_LIMIT, REJECTED
from flows.results import (
    Outcome,
    Submitted,
    explained,
    failed,
    is_limited,
    is_rejection,
    overall,
    plain,
    reasons,
)
from flows.settings import FlowSettings, flow_settings
from flows.tasks import (
    conclude,
    configured_registry,
    finish,
    import_model,
    probe,
    publish,
    retried,
    search,
)

TASKS_AT_ONCE = 16
"""Concurrent tasks of one run; the environments' limits bound measuring tasks."""


def _run_name() -> str:
    parameters = flow_run.parameters
    return " ".join(str(parameters[name]) for name in ("model", "version") if parameters.get(name))


@flow(
    name="optimize-model",
    flow_run_name=_run_name,
    task_runner=ThreadPoolTaskRunner(max_workers=TASKS_AT_ONCE),  # type: ignore[arg-type]
    on_cancellation=[end_jobs],
)
def optimize_model(
    model: str,
    version: str | None = None,
    environments: list[str] | None = None,
    options: RequestOptions | None = None,
    *,
    device: DeviceName | None = None,
    samples: str = "",
) -> State:
    """Split, measure, assemble, prove and publish one version of a model.

    Args:
        model: name in the registry, or the address of an ONNX file (/path/x.onnx, or s3://bucket/x.onnx).
        version: version of a registered model; None is the version with the alias.
        environments: names of measuring environments; None is all configured ones.
        options: compile options; None is the defaults.
        device: device of the environments, `cpu` or `cuda`; None is every device.
        samples: real inputs: a path among the files of a registered version, else a path on this machine or
            an .npz file in S3; "": what the version itself has (docs/registry.md).
    """
    settings = flow_settings()
    try:
        submitted = retried(import_model, settings)(
            model, version, environments, options, device=device, samples=samples
        )  # fmt: skip
        note_requests(submitted.requests)
        outcomes = _optimize(submitted, settings)
        artifacts.results(submitted.model, submitted.version, outcomes)
        if not is_address(model):
            retried(conclude, settings)(submitted, outcomes)
    except Exception as error:
        reason = plain(error)
        if not is_address(model):
            reason = _mark_failed(model, version, error, settings)
        if is_rejection(error):
            return Failed(name=REJECTED, message=reason)
        if is_limited(error):
            return Failed(name=OVER_LIMIT, message=reason)
        raise
    return _final_state(outcomes)


@dataclass
class _Chain:
    """The running tasks of one environment; `error` is the reason if none runs."""

    request: CompileRequest
    facts: NodeInformation | None = None
    finished_before: CompileResult | None = None
    searches: Sequence[PrefectFuture[SearchResult]] = ()
    finished: PrefectFuture[CompileResult] | None = None
    error: Exception | None = None


def _optimize(submitted: Submitted, settings: FlowSettings) -> list[Outcome]:
    """Run all environments at once; the failure of one does not affect the others."""
    probes = [retried(probe, settings).submit(submitted, request) for request in submitted.requests]
    chains = [
        _start(submitted, request, described, settings)
        for request, described in zip(submitted.requests, probes, strict=True)
    ]
    return [_settle(submitted, chain, settings) for chain in chains]


def _start(
    submitted: Submitted,
    request: CompileRequest,
    described: PrefectFuture[NodeInformation],
    settings: FlowSettings,
) -> _Chain:
    try:
        facts = described.result()
        finished_before = read_result(open_store(settings.store, writes=False), request, facts)
        if finished_before:
            get_run_logger().info("%s: unchanged since it was finished", request.environment)
            return _Chain(request, facts, finished_before)
        names = open_compile_service(request.environment, settings).functions(request)
        searches = retried(search, settings).map(
            unmapped(submitted), unmapped(request), list(names)
        )
        finished = retried(finish, settings).submit(
            submitted,
            request,
            facts,
            searches,  # type: ignore[arg-type]  # Prefect waits for the futures
        )
        return _Chain(request, facts, None, searches, finished=finished)
    except Exception as error:  # noqa: BLE001 - any exception: the other environments continue
        return _Chain(request, error=error)


def _settle(submitted: Submitted, chain: _Chain, settings: FlowSettings) -> Outcome:
    """Wait for one environment, then publish and record its result."""
    request = chain.request
    try:
        facts, result = _awaited(chain)
        outcome = retried(publish, settings)(
            submitted.model, submitted.version, request, facts, result=result
        )
        artifacts.report_link(
            submitted.model, request.environment, settings.store, result.report,
            link_s=settings.report_link_s, base=settings.report_base,
        )  # fmt: skip
    except Exception as error:  # noqa: BLE001 - any exception: the other environments continue
        node = node_digest(chain.facts) if chain.facts else ""
        outcome = failed(request.environment, error, node, submitted.options_place)
    cost = run_cost(submitted.owner, request.environment, submitted.started, settings)
    outcome = outcome.model_copy(update={"cost": cost})
    get_run_logger().info("%s: %s: %s", request.environment, outcome.status, outcome.reason)
    artifacts.verdict(submitted.model, submitted.version, outcome)
    return outcome


def _awaited(chain: _Chain) -> tuple[NodeInformation, CompileResult]:
    """Return the results of the tasks. Raises the first error: later ones follow from it."""
    if chain.error:
        raise chain.error
    for search_future in chain.searches:
        search_future.result()
    result = chain.finished_before or (chain.finished.result() if chain.finished else None)
    if chain.facts is None or result is None:
        raise RuntimeError(f"nothing was started for {chain.request.environment}")
    return chain.facts, result


def _mark_failed(model: str, version: str | None, error: Exception, settings: FlowSettings) -> str:
    """Tag the version with the reason, if the registry answers; return the reason."""
    try:
        registry = configured_registry(settings)
        registered = registry.find(model, version)
        # the import has recorded the digest of the options that this run had
        digest = registry.status(registered).options_digest
        reason = explained(error, registry.options_place(registered))
        status = VersionStatus(status="failed", reason=reason, options_digest=digest)
        registry.record_status(registered, status)
    except Exception as again:  # noqa: BLE001 - the run fails with the first error, which matters more
        get_run_logger().warning("the registry was not told: %s", plain(again))
        return plain(error)
    return reason


def _final_state(outcomes: Sequence[Outcome]) -> State:
    message = reasons(outcomes)
    if overall(outcomes) != "failed":
        return Completed(message=message, data=list(outcomes))
    failures = [outcome for outcome in outcomes if outcome.status == "failed"]
    name = REJECTED if all(outcome.rejected for outcome in failures) else None
    if any(outcome.limited for outcome in failures):
        name = OVER_LIMIT
    return Failed(name=name, message=message)
