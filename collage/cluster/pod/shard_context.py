"""What a pod does before it works on a shard: read it, prove that it fits this node, and open what it needs.

A pod that measures or builds first proves that what it leaves will be what is wanted. One that measures
must be in the environment of the batch. One that builds must be a machine whose kernels run there: of
the same processor, unless the kernels are for a GPU, whose code is the same wherever it is built. Both must
have the toolchains in the versions that the batch names, each as far as its part of the work needs
them: no driver where kernels are built, no compiler where they are only loaded. Otherwise nothing of what
it left would ever be found, so the Job fails at once (exit 43) and says what differs.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import ValidationError

from collage.backends.base import Availability, Backend, Part
from collage.backends.nvidia.architecture import generate_for
from collage.backends.registry import as_elsewhere, known_backends
from collage.cluster.kernel_records import KernelIndex
from collage.cluster.pod.answers import NodeError, ShardError, environment_here, flushing
from collage.cluster.shards import Batch, Purpose, ShardWork
from collage.cost import Costs, Environment
from collage.frontend import Function, Model
from collage.measure.device import capability_of
from collage.measure.environment import this_environment
from collage.pipeline.compile_context import Session, open_session
from collage.pipeline.request import CompileRequest, fetch_model, read_request
from collage.pipeline.search_stage import imported
from collage.store import open_store
from collage.store.base import BlobDigest, Store
from collage.store.blobs import get_blob
from collage.store.record_keys import record_keys


@dataclass(frozen=True)
class OpenShard:
    """A shard on a node that fits it.

    Attributes:
        digest, index: of the batch, and the shard's place in it.
        works: what the shard names.
        kernels: of the environment; whoever puts some lets others find them within seconds.
    """

    store: Store
    digest: str
    index: int
    batch: Batch
    works: Sequence[ShardWork]
    session: Session
    model: Model
    function: Function
    kernels: KernelIndex

    @property
    def table(self) -> Costs:
        """Of the batch's environment."""
        return self.session.table.within(self.batch.environment)


@contextmanager
def open_shard(
    address: str, digest: str, index: int, purpose: Purpose, scratch: Path
) -> Iterator[OpenShard]:
    """Open one shard of a batch; what was put by then is in the store when the context ends.

    Raises:
        NodeError, OptionError: no shard of this batch can be worked on here.
        ShardError, InputError, DamagedError: this shard can be worked on nowhere.
        CollageError: another try may work.
    """
    store = open_store(address, writes=False)
    batch, works = read_shard(store, digest, index, purpose)
    if capability := capability_of(batch.environment.driver):
        generate_for(capability)
    request = read_request(store, batch.request)
    backends = fitting_backends(batch, request)
    options = request.compile_options(address, scratch)
    path = fetch_model(store, request, scratch / "model")
    kernels = KernelIndex(store, batch.environment, record_keys(options.store_dir))
    with (
        open_session(options, environment=batch.environment, backends=backends) as session,
        flushing(session.table, kernels),
    ):
        model = imported(path, session)
        function = find_function(model, batch, works)
        yield OpenShard(store, digest, index, batch, works, session, model, function, kernels)


def read_shard(
    store: Store, digest: str, index: int, purpose: Purpose
) -> tuple[Batch, Sequence[ShardWork]]:
    """Return a batch, which is to be for this purpose, and one shard of it.

    Raises:
        NodeError, ShardError: there is none that this program can work on.
    """
    batch = read_batch(store, digest)
    if batch.purpose != purpose:
        raise ShardError(f"the batch is one to {batch.purpose}, not to {purpose}")
    if not 0 <= index < len(batch.shards):
        raise ShardError(f"the batch has {len(batch.shards)} shards, and none with index {index}")
    return batch, batch.shards[index]


def read_batch(store: Store, digest: str) -> Batch:
    """Return a batch. Raises NodeError where this program does not understand it."""
    try:
        return Batch.model_validate_json(get_blob(store, BlobDigest(digest)))
    except ValidationError as error:
        raise NodeError(
            "the batch was written by another version of Collage: use images of one version: "
            f"{error.errors()[0]['msg']}"
        ) from error


def fitting_backends(batch: Batch, request: CompileRequest) -> list[Backend]:
    """Return the backends of the batch, which this node has as far as the batch needs them.

    Raises:
        NodeError: the node is another one than is wanted, or a backend is; says what differs.
    """
    if batch.purpose == "build":
        _check_processor(batch, request)
    else:
        _check_environment(batch, request)
    known = {one.name: one for one in known_backends(request.options.backends, request.device)}
    return [
        as_elsewhere(_fitting(known.get(name), name, identity, batch), identity)
        for name, identity in batch.backends.items()
    ]


def _fitting(backend: Backend | None, name: str, identity: str, batch: Batch) -> Backend:
    found = backend.available_for(_part(batch)) if backend else Availability("not installed")
    versions = [f"{library}={version}" for library, version in sorted(found.libraries.items())]
    here = " ".join([name, *versions])
    same = here.split() == identity.split()
    if _part(batch) is not Part.ALL:
        same = set(versions) <= set(identity.split())
    if backend is None or found.reason or not same:
        said = f"not available here ({found.reason})" if found.reason else f"{here} here"
        raise NodeError(
            f"the backend {name} is {said}, {identity} was expected: use a measuring image and a "
            "controller image of one version, on nodes that are alike"
        )
    return backend


def _part(batch: Batch) -> Part:
    if batch.purpose == "build":
        return Part.BUILD
    return Part.RUN if batch.fetches else Part.ALL


def _check_environment(batch: Batch, request: CompileRequest) -> None:
    found = environment_here(request)
    if found != batch.environment:
        raise NodeError(f"this node is another environment: {_differences(batch, found)}")


def _check_processor(batch: Batch, request: CompileRequest) -> None:
    here, there = this_environment(request.threads), batch.environment
    if request.device == "cpu" and here.cpu_features != there.cpu_features:
        raise NodeError(
            f"kernels that are built on this node ({here.cpu}) are for other instructions than those of "
            f"the nodes that measure ({there.cpu}): choose nodes of the same processor to build on"
        )


def _differences(batch: Batch, found: Environment) -> str:
    expected, here = asdict(batch.environment), asdict(found)
    parts = [
        f"{name} is {here[name]!r}, not {expected[name]!r}"
        for name in sorted(expected)
        if here[name] != expected[name]
    ]
    return "; ".join(parts) + "; narrow the node selector so that all nodes are alike"


def find_function(model: Model, batch: Batch, works: Sequence[ShardWork]) -> Function:
    """Return the function that a batch is of. Raises ShardError where it has not what the shard names."""
    function = next((one for one in model.functions if one.name == batch.function), None)
    if function is None:
        raise ShardError(f"the model has no function {batch.function!r}")
    for one in works:
        if one.work(batch.function).nodes >> len(function.graph):
            raise ShardError(f"the function {function.name} has no region {one.nodes}")
    return function
