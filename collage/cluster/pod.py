"""What the pods that work for a controller share: answers, checks, exit codes, and costs on their way.

A pod that measures or builds (`measuring`, `building`) first proves that what it leaves will be what is
wanted: it must be in the environment of the batch and have the same backends, otherwise nothing of it would
ever be found, so the Job fails at once (exit 43) and says what differs. Costs reach the store within
seconds, whatever the next candidate takes, and once more on SIGTERM.
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
from collage.cost import Costs, Environment
from collage.errors import (
    BackendError,
    CollageError,
    DamagedError,
    InputError,
    OptionError,
)
from collage.frontend import Function, Model
from collage.logs import redact
from collage.pipeline.request import NodeFacts, read_request
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


def read_shard(
    store: Store, digest: str, index: int, purpose: str
) -> tuple[Batch, Sequence[ShardWork]]:
    """Return a batch, which is to be for this purpose, and one shard of it.

    Raises:
        NodeError, ShardError: there is none that this program can work on.
    """
    try:
        batch = Batch.model_validate_json(get_blob(store, BlobDigest(digest)))
    except ValidationError as error:
        raise NodeError(
            "the batch was written by another version of Collage: use images of one version: "
            f"{error.errors()[0]['msg']}"
        ) from error
    if batch.purpose != purpose:
        raise ShardError(f"the batch is one to {batch.purpose}, not to {purpose}")
    if not 0 <= index < len(batch.shards):
        raise ShardError(f"the batch has {len(batch.shards)} shards, and none with index {index}")
    return batch, batch.shards[index]


def check_measuring_node(batch: Batch, facts: NodeFacts) -> None:
    """Raise NodeError unless costs that are measured here are those that are wanted."""
    if facts.environment != batch.environment:
        raise NodeError(
            f"this node is another environment: {_differences(batch, facts.environment)}"
        )
    _check_backends(batch, facts)


def check_building_node(batch: Batch, facts: NodeFacts) -> None:
    """Raise NodeError unless kernels that are built here run on the nodes that measure."""
    here, there = facts.environment, batch.environment
    if here.cpu_features != there.cpu_features:
        raise NodeError(
            f"kernels that are built on this node ({here.cpu}) are for other instructions than those of "
            f"the nodes that measure ({there.cpu}): choose nodes of the same processor to build on"
        )
    _check_backends(batch, facts)


def _check_backends(batch: Batch, facts: NodeFacts) -> None:
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


def find_function(model: Model, batch: Batch, shard: Sequence[ShardWork]) -> Function:
    """Return the function that a batch is of. Raises ShardError where it has not what the shard names."""
    function = next((one for one in model.functions if one.name == batch.function), None)
    if function is None:
        raise ShardError(f"the model has no function {batch.function!r}")
    for one in shard:
        if one.work(batch.function).nodes >> len(function.graph):
            raise ShardError(f"the function {function.name} has no region {one.nodes}")
    return function


@contextmanager
def flushing(table: Costs) -> Iterator[None]:
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
