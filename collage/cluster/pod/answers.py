"""What the pods that work for a controller share: answers, exit codes, and costs on their way.

Costs and kernels reach the store within seconds, whatever the next candidate takes, and once more on SIGTERM.
"""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Protocol

from collage.cluster.exit_codes import BAD_INPUT, BAD_NODE, RETRY, TERMINATED
from collage.cost import Environment
from collage.errors import (
    BackendError,
    CollageError,
    DamagedError,
    GateError,
    InputError,
    MeasureError,
    OptionError,
    UnprovenError,
)
from collage.logs import redact
from collage.measure.environment import this_environment
from collage.pipeline.compile_service import LocalSite, node_facts
from collage.pipeline.request import CompileRequest, FinishAnswer, read_request
from collage.report.terminal import TerminalProgress
from collage.store import open_store
from collage.store.aliases import AliasSigning

FLUSH_S = 2.0


class Sends(Protocol):
    """Keeps things that others are to see: costs, kernels."""

    def flush(self) -> None:
        """Send what waits. Raises StoreError; it waits on then."""
        ...


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
    request = read_request(store, request_digest)
    environment_here(request)
    facts = node_facts(request)
    store.create(answer, facts.model_dump_json().encode())


def answer_finish(
    address: str,
    request_digest: str,
    environment: str,
    answer: str,
    scratch: Path,
    signing: AliasSigning | None = None,
) -> None:
    """Finish the request on this node and write the result into the store under `answer`.

    Args:
        signing: signs the bundle, if there is a key.

    Raises:
        NodeError: this is not the environment (a digest) that was searched for.
        CollageError: what `LocalSite.finish` raises, but for a GateError: that is an answer.
    """
    store = open_store(address)
    request = read_request(store, request_digest)
    found = environment_here(request)
    if found.digest != environment:
        device = f", {found.driver}" if found.driver else ""
        raise NodeError(
            f"costs were measured in the environment {environment[:12]}, this node is "
            f"{found.digest[:12]} ({found.cpu}, {found.cores} cores{device}): narrow the node "
            "selector so that all nodes are alike"
        )
    try:
        answered = FinishAnswer(
            result=LocalSite(address, scratch, signing).finish(request, TerminalProgress())
        )
    except GateError as error:
        answered = FinishAnswer(refusal=str(error), unproven=isinstance(error, UnprovenError))
    store.create(answer, answered.model_dump_json().encode())


def environment_here(request: CompileRequest) -> Environment:
    """Return what this node is for the request. Raises NodeError where it lacks the device."""
    try:
        return this_environment(request.threads, request.device)
    except MeasureError as error:
        raise NodeError(
            f"{error}; is the environment's gpuResource what its nodes offer, and do they show pods the "
            "GPU (runtimeClassName)?"
        ) from error


@contextmanager
def flushing(*sent: Sends) -> Iterator[None]:
    """Send what waits every few seconds: a candidate may take many, and a pod may be killed meanwhile."""
    done = threading.Event()

    def run() -> None:
        while not done.wait(FLUSH_S):
            try:
                for one in sent:
                    one.flush()
            except CollageError as error:  # it stays, and goes with the next flush
                print(redact(f"collage: {error}"), file=sys.stderr, flush=True)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        for one in sent:
            one.flush()


def end_on_sigterm() -> None:
    """Let SIGTERM end the program as an exception does: contexts close, costs are sent."""

    def end(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)  # one is enough
        sys.exit(TERMINATED)

    signal.signal(signal.SIGTERM, end)
