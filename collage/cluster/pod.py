"""What a measuring pod does: one shard of a batch, with the workers of `LocalMeasurer`.

The pod first proves that its costs will be the ones that are wanted: it must be in the environment of the
batch, have the same backends, and compute the same keys; otherwise nothing of what it measured would ever
be found, so the Job fails at once (exit 43) and says what differs. It skips what the store knows, so an
index that is run again repeats nothing. Costs reach the store within seconds, whatever the next
candidate takes, and once more on SIGTERM.
"""

import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType

from pydantic import ValidationError

from collage.cluster.exits import BAD_INPUT, BAD_NODE, RETRY, TERMINATED
from collage.cluster.shards import Batch, ShardWork
from collage.cost import CostKey, Costs, Environment
from collage.errors import (
    BackendError,
    CollageError,
    DamagedError,
    InputError,
    OptionError,
    StoreError,
)
from collage.frontend import Function
from collage.logs import redact
from collage.measure.local import LocalMeasurer
from collage.pipeline.request import CompileRequest, fetch_model, read_request
from collage.pipeline.searching import imported, local_measurer, sampled
from collage.pipeline.session import open_session
from collage.pipeline.site import LocalSite, node_facts
from collage.report.terminal import Progress
from collage.store import open_store
from collage.store.base import BlobDigest, Store
from collage.store.blobs import get_blob

FLUSH_S = 2.0


class NodeError(CollageError):
    """This node or image is not what the controller expects."""

    exit_code = BAD_NODE


class ShardError(CollageError):
    """The shard itself makes no sense."""

    exit_code = BAD_INPUT


def exit_code(error: BaseException) -> int:
    """Return what the pod exits with, which the Job's failure policy goes by."""
    if isinstance(error, NodeError | OptionError | BackendError):
        return BAD_NODE
    if isinstance(error, ShardError | InputError | DamagedError):
        return BAD_INPUT
    return RETRY


def answer_probe(address: str, request_digest: str, answer: str) -> None:
    """Write what this node says of itself into the store under `answer`."""
    store = open_store(address, writes=False)
    facts = node_facts(read_request(store, request_digest))
    store.create(answer, facts.model_dump_json().encode())


def answer_finish(
    address: str, request_digest: str, environment: str, answer: str, scratch: Path
) -> None:
    """Finish the request on this node and write the result into the store under `answer`.

    Raises:
        NodeError: this is not the environment (a digest) that was searched for.
        CollageError: what `LocalSite.finish` raises.
    """
    store = open_store(address)
    request = read_request(store, request_digest)
    facts = node_facts(request)
    if facts.environment.digest != environment:
        raise NodeError(
            f"costs were measured in the environment {environment[:12]}, this node is "
            f"{facts.environment.digest[:12]} ({facts.environment.cpu}, {facts.environment.cores} "
            "cores): narrow the node selector so that all nodes are alike"
        )
    result = LocalSite(address, scratch).finish(request, Progress())
    store.create(answer, result.model_dump_json().encode())


def measure_shard(address: str, batch_digest: str, index: int, scratch: Path) -> str:
    """Measure one shard; return what was done, in words.

    Raises:
        NodeError, OptionError: no shard of this batch can be measured here.
        ShardError, InputError, DamagedError: this shard can be measured nowhere.
        CollageError: another try may work.
    """
    store = open_store(address, writes=False)
    batch, shard = _read_shard(store, batch_digest, index)
    request = read_request(store, batch.request)
    _check_node(batch, request)
    options = request.compile_options(address, scratch)
    path = fetch_model(store, request, scratch / "model")
    with open_session(options) as session, _flushing(session.table):
        model = imported(path, session)
        function = next((one for one in model.functions if one.name == batch.function), None)
        if function is None:
            raise ShardError(f"the model has no function {batch.function!r}")
        samples = sampled(model, function, session)
        measurer = local_measurer(function, samples.reference_dir, session)
        try:
            return _measure(batch, shard, function, measurer, session.table)
        finally:
            measurer.close()


def _read_shard(store: Store, digest: str, index: int) -> tuple[Batch, Sequence[ShardWork]]:
    try:
        batch = Batch.model_validate_json(get_blob(store, BlobDigest(digest)))
    except ValidationError as error:
        raise NodeError(
            "the batch was written by another version of Collage: use images of one version: "
            f"{error.errors()[0]['msg']}"
        ) from error
    if not 0 <= index < len(batch.shards):
        raise ShardError(f"the batch has {len(batch.shards)} shards, and none with index {index}")
    return batch, batch.shards[index]


def _check_node(batch: Batch, request: CompileRequest) -> None:
    facts = node_facts(request)
    if facts.environment != batch.environment:
        raise NodeError(
            f"this node is another environment: {_differences(batch, facts.environment)}"
        )
    for name, identity in batch.backends.items():
        found = facts.backends.get(name)
        if found != identity:
            raise NodeError(
                f"the backend {name} is {found or 'not available'} here, {identity} was expected: "
                "use a measuring image and a controller image of one version, on nodes that are alike"
            )


def _differences(batch: Batch, found: Environment) -> str:
    expected, here = asdict(batch.environment), asdict(found)
    parts = [
        f"{name} is {here[name]!r}, not {expected[name]!r}"
        for name in sorted(expected)
        if here[name] != expected[name]
    ]
    return "; ".join(parts) + "; narrow the node selector so that all nodes are alike"


def _measure(
    batch: Batch,
    shard: Sequence[ShardWork],
    function: Function,
    measurer: LocalMeasurer,
    table: Costs,
) -> str:
    works = [one.work(batch.function) for one in shard]
    for one, work in zip(shard, works, strict=True):
        if work.nodes >> len(function.graph):
            raise ShardError(f"the function {function.name} has no region {one.nodes}")
        if (key := measurer.key(work)) != one.key:
            raise NodeError(
                f"the key of {one.backend} on {one.nodes} is {key[:12]} here, {one.key[:12]} was "
                "expected: use a measuring image and a controller image of one version"
            )
    costs = measurer.measure(works)
    kept = table.within(batch.environment)
    lost = [
        cost.reason
        for one, cost in zip(shard, costs, strict=True)
        if kept.get(CostKey(one.key)) is None
    ]
    if lost:
        raise StoreError(f"{len(lost)} of {len(shard)} candidates have no cost: {lost[0]}")
    return (
        f"{measurer.measured} measured, {measurer.cached} known, {measurer.invalid} invalid, "
        f"{measurer.drifted} drifted"
    )


@contextmanager
def _flushing(table: Costs) -> Iterator[None]:
    """Send costs every few seconds: a candidate may take many, and a pod may be killed meanwhile."""
    done = threading.Event()

    def run() -> None:
        while not done.wait(FLUSH_S):
            try:
                table.flush()
            except CollageError as error:  # they stay, and go with the next flush
                print(redact(f"collage: {error}"), file=sys.stderr, flush=True)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        table.flush()


def end_on_sigterm() -> None:
    """Let SIGTERM end the program as an exception does: contexts close, costs are sent."""

    def end(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)  # one is enough
        sys.exit(TERMINATED)

    signal.signal(signal.SIGTERM, end)
