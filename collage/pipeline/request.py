"""What is asked of a pipeline and what it answers: documents that travel through the store.

A request names everything by digest, so it means the same to a flow, to a pod and to whoever reads it
a year later. It lies in the store under the digest of its own text:

    requests/<digest>.json      CompileRequest      create
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from collage.backends.registry import names_on
from collage.cost import Environment
from collage.errors import ModelError, StoreError
from collage.frontend.model_files import checked_name, open_model
from collage.options import EFFORTS, DeviceName, Options
from collage.store.base import BlobDigest, Store
from collage.store.blobs import fetch_blob, keep_blobs, put_blob, read_checked, trash_key

_NORMAL = EFFORTS["normal"]


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RequestOptions(_Document):
    """The part of `collage.options.Options` that travels; see there."""

    backends: tuple[str, ...] | None = None
    dims: Mapping[str, int] = Field(default_factory=dict)
    shapes: tuple[Mapping[str, tuple[int, ...]], ...] = ()
    measure_budget_s: float = _NORMAL.measure_budget_s
    refine_s: float = _NORMAL.refine_s
    tune_s: float = 0.0
    """Of the machine that finishes: off unless asked for, since that one is to measure nothing twice."""
    verify_s: float = 2.0
    fallback: bool = True
    precision: str = "fp32"
    tolerance: float = Options().tolerance
    workers: int = 2
    timeout_s: float = 30.0
    memory_bytes: int = 4 << 30
    seed: int = 0


class CompileRequest(_Document):
    """One model for one measuring environment.

    Attributes:
        name: of the model, for people.
        model: digest of the ONNX file's blob.
        external: digests of its external data by file name, relative to the ONNX file.
        environment: name of the measuring environment.
        threads: of every kernel.
        device: where kernels run.
    """

    name: str
    model: str
    external: Mapping[str, str] = Field(default_factory=dict)
    environment: str = "local"
    threads: int = Field(default=1, ge=1)
    device: DeviceName = "cpu"
    options: RequestOptions = Field(default_factory=RequestOptions)

    @property
    def text(self) -> bytes:
        """The canonical JSON: equal requests have equal bytes."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True).encode()

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text).hexdigest()

    def compile_options(self, store: str, cache_dir: Path) -> Options:
        """Return the options of a compile that shares costs through the store at this address."""
        options: dict[str, Any] = dict(self.options)
        target: dict[str, Any] = {"threads": self.threads, "device": self.device}
        return Options(**options, **target, cache_dir=cache_dir, store=store)


class NodeFacts(_Document):
    """What a node that measures says of itself.

    Attributes:
        environment: what costs are true for.
        cache_bytes: of its last-level cache.
        backends: identity (name and versions) of each backend that is available there.
    """

    environment: Environment
    cache_bytes: int
    backends: Mapping[str, str]


class PlanFacts(_Document):
    """A plan that the search found; seconds are predicted."""

    name: str
    predicted_s: float
    regions: int
    backends: tuple[str, ...]


class SearchFacts(_Document):
    """What the search of one function found; counts as in `collage.report.data.CandidateCounts`."""

    function: str
    plans: tuple[PlanFacts, ...]
    gap_s: float
    enumerated: int
    unique: int
    measured: int
    cached: int
    invalid: int
    seconds: float


class FunctionFacts(_Document):
    """What came of one function.

    Attributes:
        function: its name.
        verdict: what the gate has proven of its speed; "not slower", else nothing was published.
        predicted_s: what the plan was predicted to take.
        latency_s: of the bundle ("collage") and of every baseline; None where it did not run.
    """

    function: str
    verdict: str
    predicted_s: float | None
    latency_s: Mapping[str, float | None]


class CompileResult(_Document):
    """What a finished compile says.

    Attributes:
        bundle: digest of the bundle in the store.
        report: digest of its HTML page there.
        speedup: latency of the fastest original framework divided by the bundle's, the least of any
            function; None without one.
        functions: what came of each function.
    """

    bundle: str
    report: str
    reason: str
    speedup: float | None
    functions: tuple[FunctionFacts, ...]
    plan: tuple[str, ...]
    measured: int
    cached: int
    invalid: int
    seconds: Mapping[str, float]


class FinishAnswer(_Document):
    """What a finishing pod answers: its result, or that the gate let nothing pass, which is no failure.

    Attributes:
        result: None where the gate refused.
        refusal: the gate's reason.
        unproven: the numbers are right, and the speed is not proven.
    """

    result: CompileResult | None = None
    refusal: str = ""
    unproven: bool = False


def submit(
    store: Store,
    path: Path,
    *,
    name: str = "",
    environment: str = "local",
    threads: int = 1,
    device: DeviceName = "cpu",
    options: RequestOptions | None = None,
) -> CompileRequest:
    """Put the model's files and the request into the store; doing it again changes nothing.

    Of the backends that the options name, those of the device are asked for.

    Raises:
        OptionError: an unknown backend, or none of them runs on the device.
        ModelError: the file is no ONNX model, or its external data is missing or lies elsewhere.
        StoreError: the store fails.
    """
    options = options or RequestOptions()
    with open_model(path) as files:
        external = {name: put_blob(store, file.path) for name, file in files.external.items()}
        model = put_blob(store, files.own.path)
        request = CompileRequest(
            name=name or path.stem,
            model=model,
            external=external,
            environment=environment,
            threads=threads,
            device=device,
            options=options.model_copy(update={"backends": names_on(options.backends, device)}),
        )
        store.create(_key(request.digest), request.text)
        held = {external[name]: file.path for name, file in files.external.items()}
        keep_blobs(store, {model: files.own.path, **held})
    return request


def read_request(store: Store, digest: str) -> CompileRequest:
    """Return the request. Raises StoreError where it is absent or damaged."""
    key = _key(digest)
    data = read_checked(store, key, digest) or read_checked(store, trash_key(key), digest)
    if data is None:
        raise StoreError(f"the store {store.url} has no request {digest}; submit the model again")
    try:
        return CompileRequest.model_validate_json(data)
    except ValidationError as error:
        raise StoreError(
            f"the request {digest} in the store {store.url} is none of this version of Collage; "
            "submit the model again"
        ) from error


def fetch_model(store: Store, request: CompileRequest, folder: Path) -> Path:
    """Bring the model's files into `folder`; return the ONNX file.

    Raises:
        StoreError: a file is not in the store, is damaged, or would lie outside of `folder`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.onnx"
    fetch_blob(store, BlobDigest(request.model), path)
    for name, digest in request.external.items():
        file = folder / _name_below(name)
        if not file.resolve().is_relative_to(folder.resolve()) or file == path:
            raise StoreError(f"the request's external data {name!r} lies outside of the model")
        file.parent.mkdir(parents=True, exist_ok=True)
        fetch_blob(store, BlobDigest(digest), file)
    return path


def _name_below(name: str) -> str:
    try:
        return checked_name(name)
    except ModelError as error:
        raise StoreError(f"the request cannot be right: {error}") from error


def _key(digest: str) -> str:
    return f"requests/{digest}.json"
