"""The context of a shard in a pod: the batch, proof that this node fits it, and the open context.

A pod first proves that its results will be usable. A measuring pod must be in the environment of the batch.
A building pod must produce kernels for that environment: it needs the same processor, unless the kernels
are for a GPU, whose code does not depend on the building machine. Both need the toolchains in the versions
of the batch, as far as their role uses them: no driver for builds, no compiler for loading. CostTable under
other keys would never be found, so on a mismatch the Job fails at once (exit 43) and the error says what
differs.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import ValidationError

from collage.backends.base import Availability, Backend, BackendRole
from collage.backends.nvidia.architecture import generate_for
from collage.backends.registry import known_backends
from collage.cluster.kernel_records import KernelIndex
from collage.cluster.pod.answers import NodeError, ShardError, environment_here, flushing
from collage.cluster.shards import Batch, Purpose, ShardRequest
from collage.cost import CostTable, Environment
from collage.entries import ModelEntry
from collage.errors import OptionError
from collage.frontend import Function, Model
from collage.frontend.model import Body
from collage.measure.device import capability_of
from collage.measure.environment import this_environment
from collage.pipeline.bodies import body_path
from collage.pipeline.compile_context import CompileContext, open_compile_context
from collage.pipeline.compile_service import import_model_of
from collage.pipeline.request import CompileRequest, fetch_models, read_request
from collage.pipeline.request_samples import fetch_samples
from collage.store import open_store
from collage.store.base import BlobDigest, Store
from collage.store.blobs import get_blob
from collage.store.record_keys import record_keys


@dataclass(frozen=True)
class ShardContext:
    """A shard, open on a node that fits it.

    Attributes:
        digest: digest of the batch.
        index: index of the shard in the batch.
        requests: measurement requests of the shard.
        caller: the model's function; the searched one, or the one with the searched body.
        bodies: bodies from the caller to the searched one; none where a function of the model is searched.
        kernels: kernel index of the environment, flushed every few seconds.
    """

    store: Store
    digest: str
    index: int
    batch: Batch
    requests: Sequence[ShardRequest]
    context: CompileContext
    model: Model
    caller: Function
    bodies: tuple[Body, ...]
    kernels: KernelIndex

    @property
    def function(self) -> Function:
        """The searched function."""
        return self.bodies[-1].function if self.bodies else self.caller

    @property
    def table(self) -> CostTable:
        """CostTable of the batch's environment."""
        return self.context.table.within(self.batch.environment)


@contextmanager
def open_shard(
    address: str, digest: str, index: int, purpose: Purpose, *, scratch: Path
) -> Iterator[ShardContext]:
    """Open one shard of a batch; costs and kernels are flushed to the store when the context ends.

    Raises:
        NodeError, OptionError: this node fits no shard of the batch.
        ShardError, InputError, DamagedError: no node can work on this shard.
        CollageError: a transient failure.
    """
    store = open_store(address, writes=False)
    batch, requests = read_shard(store, digest, index, purpose)
    if capability := capability_of(batch.environment.driver):
        generate_for(capability)
    request = read_request(store, batch.request)
    backends = fitting_backends(batch, request)
    options = request.compile_options(address, scratch, fetch_samples(store, request))
    entries = fetch_models(store, request, scratch / "model")
    kernels = KernelIndex(store, batch.environment, record_keys(options.store_dir))
    with (
        open_compile_context(options, environment=batch.environment, backends=backends) as context,
        flushing(context.table, kernels),
    ):
        model, caller, bodies = find_function(entries, batch, requests, context)
        yield ShardContext(
            store,
            digest,
            index,
            batch,
            requests=requests,
            context=context,
            model=model,
            caller=caller,
            bodies=bodies,
            kernels=kernels,
        )


def read_shard(
    store: Store, digest: str, index: int, purpose: Purpose
) -> tuple[Batch, Sequence[ShardRequest]]:
    """Return a batch of this purpose and one shard of it.

    Raises:
        NodeError, ShardError: this program cannot work on it.
    """
    batch = read_batch(store, digest)
    if batch.purpose != purpose:
        raise ShardError(f"the batch is one to {batch.purpose}, not to {purpose}")
    if not 0 <= index < len(batch.shards):
        raise ShardError(f"the batch has {len(batch.shards)} shards, and none with index {index}")
    return batch, batch.shards[index]


def read_batch(store: Store, digest: str) -> Batch:
    """Return a batch. Raises NodeError if another version of Collage wrote it."""
    try:
        return Batch.model_validate_json(get_blob(store, BlobDigest(digest)))
    except ValidationError as error:
        raise NodeError(
            "the batch was written by another version of Collage: use images of one version: "
            f"{error.errors()[0]['msg']}"
        ) from error


def fitting_backends(batch: Batch, request: CompileRequest) -> list[Backend]:
    """Return the backends of the batch, each checked on this node for its role.

    Raises:
        NodeError: the node or a backend differs from the batch; the message says how.
    """
    if batch.purpose == "build":
        _check_processor(batch, request)
    else:
        _check_environment(batch, request)
    installed = {
        backend.name: backend
        for backend in known_backends(request.options.backends, request.device)
    }
    return [
        _fitting(installed.get(name), name, identity, batch).with_identity(identity)
        for name, identity in batch.backends.items()
    ]


def _fitting(backend: Backend | None, name: str, identity: str, batch: Batch) -> Backend:
    availability = backend.available_for(_part(batch)) if backend else Availability("not installed")
    versions = [
        f"{library}={version}" for library, version in sorted(availability.libraries.items())
    ]
    identity_here = " ".join([name, *versions])
    same = identity_here.split() == identity.split()
    if _part(batch) is not BackendRole.ALL:
        same = set(versions) <= set(identity.split())
    if backend is None or availability.reason or not same:
        finding = (
            f"not available here ({availability.reason})"
            if availability.reason
            else f"{identity_here} here"
        )
        raise NodeError(
            f"the backend {name} is {finding}, {identity} was expected: use a measuring image and a "
            "controller image of one version, on nodes that are alike"
        )
    return backend


def _part(batch: Batch) -> BackendRole:
    if batch.purpose == "build":
        return BackendRole.BUILD
    return BackendRole.RUN if batch.fetches else BackendRole.ALL


def _check_environment(batch: Batch, request: CompileRequest) -> None:
    environment = environment_here(request)
    if environment != batch.environment:
        raise NodeError(f"this node is another environment: {_differences(batch, environment)}")


def _check_processor(batch: Batch, request: CompileRequest) -> None:
    own, measuring = this_environment(request.threads), batch.environment
    if request.target.needs_equal_processors and own.cpu_features != measuring.cpu_features:
        raise NodeError(
            f"kernels that are built on this node ({own.cpu}) are for other instructions than those of "
            f"the nodes that measure ({measuring.cpu}): choose nodes of the same processor to build on"
        )


def _differences(batch: Batch, environment: Environment) -> str:
    expected, actual = asdict(batch.environment), asdict(environment)
    parts = [
        f"{name} is {actual[name]!r}, not {expected[name]!r}"
        for name in sorted(expected)
        if actual[name] != expected[name]
    ]
    return "; ".join(parts) + "; narrow the node selector so that all nodes are alike"


def find_function(
    entries: Sequence[ModelEntry],
    batch: Batch,
    requests: Sequence[ShardRequest],
    context: CompileContext,
) -> tuple[Model, Function, tuple[Body, ...]]:
    """Import the model of a batch's function; return it with the function, and the path to a body.

    Raises:
        ShardError: the model lacks the function, the body, or a region of the shard.
        CollageError: the import fails.
    """
    try:
        model, caller = import_model_of(batch.caller or batch.function, entries, context)
    except OptionError as error:
        raise ShardError(str(error)) from error
    bodies = body_path(caller, batch.function) if batch.caller else ()
    if bodies is None:
        raise ShardError(f"the function {caller.name} has no body {batch.function}")
    searched = bodies[-1].function if bodies else caller
    for request in requests:
        if request.work(batch.function).nodes >> len(searched.graph):
            raise ShardError(f"the function {searched.name} has no region {request.nodes}")
    return model, caller, bodies
