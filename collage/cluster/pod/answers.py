"""Answers of probe and finish pods, exit codes of all pods, and the periodic flush of results.

Costs and kernels reach the store within seconds, independent of the next candidate, and again on SIGTERM.
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
from collage.pipeline.compile_service import LocalCompileService, node_information
from collage.pipeline.request import BundleAnswer, CompileRequest, read_request
from collage.report.terminal import TerminalProgress
from collage.store import open_store
from collage.store.aliases import AliasSigning

FLUSH_S = 2.0


class Flushable(Protocol):
    """A buffer of results for the store: costs, kernels."""

    def flush(self) -> None:
        """Write the buffer to the store. Raises StoreError and keeps the buffer then."""
        ...


class NodeError(CollageError):
    """This node or image differs from the one that the controller expects."""

    exit_code = BAD_NODE


class ShardError(CollageError):
    """The shard itself is invalid."""

    exit_code = BAD_INPUT


def exit_code(error: BaseException) -> int:
    """Return the exit code of an error, for the failure policy of the Job."""
    if isinstance(error, NodeError | OptionError | BackendError):
        return BAD_NODE
    if isinstance(error, ShardError | InputError | DamagedError):
        return BAD_INPUT
    return RETRY


def answer_probe(address: str, request_digest: str, answer: str) -> None:
    """Write this node's information into the store under the key `answer`."""
    store = open_store(address, writes=False)
    request = read_request(store, request_digest)
    environment_here(request)
    facts = node_information(request)
    store.create(answer, facts.model_dump_json().encode())


def answer_finish(
    address: str,
    request_digest: str,
    environment: str,
    answer: str,
    *,
    scratch: Path,
    signing: AliasSigning | None = None,
) -> None:
    """Build the bundle on this node and write the result into the store under the key `answer`.

    Args:
        signing: keys for the bundle's signature; None leaves it unsigned.

    Raises:
        NodeError: the digest of this node's environment is not `environment`.
        CollageError: as `LocalCompileService.finish`, except GateError, which is an answer.
    """
    store = open_store(address)
    request = read_request(store, request_digest)
    actual = environment_here(request)
    if actual.digest != environment:
        device = f", {actual.driver}" if actual.driver else ""
        raise NodeError(
            f"costs were measured in the environment {environment[:12]}, this node is "
            f"{actual.digest[:12]} ({actual.cpu}, {actual.cores} cores{device}): narrow the node "
            "selector so that all nodes are alike"
        )
    try:
        finished = BundleAnswer(
            result=LocalCompileService(address, scratch, signing).finish(
                request, TerminalProgress()
            )
        )
    except GateError as error:
        finished = BundleAnswer(refusal=str(error), unproven=isinstance(error, UnprovenError))
    store.create(answer, finished.model_dump_json().encode())


def environment_here(request: CompileRequest) -> Environment:
    """Return this node's environment for the request. Raises NodeError if the device is absent."""
    try:
        return this_environment(request.threads, request.target)
    except MeasureError as error:
        raise NodeError(
            f"{error}; is the environment's gpuResource what its nodes offer, and do they show pods the "
            "GPU (runtimeClassName)?"
        ) from error


@contextmanager
def flushing(*senders: Flushable) -> Iterator[None]:
    """Flush every `FLUSH_S` seconds: one candidate may take minutes, and the pod may be killed meanwhile."""
    done = threading.Event()

    def run() -> None:
        while not done.wait(FLUSH_S):
            try:
                for sender in senders:
                    sender.flush()
            except CollageError as error:  # the buffer stays for the next flush
                print(redact(f"collage: {error}"), file=sys.stderr, flush=True)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        for sender in senders:
            sender.flush()


def end_on_sigterm() -> None:
    """Let SIGTERM end the program like an exception: contexts close and flush their results."""

    def end(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)  # one is enough
        sys.exit(TERMINATED)

    signal.signal(signal.SIGTERM, end)
