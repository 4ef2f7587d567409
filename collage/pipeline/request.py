"""Compile requests and their results: the documents of a compile service, stored as JSON.

A request names its files by digest, so its meaning does not depend on the reader or the time. The key of a
request is the digest of its own text:

    requests/<digest>.json      CompileRequest      create
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import MISSING
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from collage.backends.registry import names_on
from collage.cost import Environment
from collage.entries import ModelEntry, ModelPaths, find_entries
from collage.errors import ModelError, StoreError
from collage.frontend.input_names import input_names
from collage.frontend.model_files import ModelFiles, checked_name, open_model
from collage.frontend.sample_files import NO_SAMPLES, UserSamples
from collage.frontend.samples import named_samples, shape_sets
from collage.option_declaration import declaration_of
from collage.options import DeviceName, Options, request_fields
from collage.pipeline.request_samples import put_samples, sample_files
from collage.runtime.function_names import MAIN
from collage.runtime.target import Target
from collage.store.base import BlobDigest, Store
from collage.store.blobs import fetch_blob, keep_blobs, put_blob, read_checked, trash_key


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _field_definitions() -> dict[str, Any]:
    definitions = {}
    for option in request_fields():
        declaration = declaration_of(option)
        default: Any = option.default
        if declaration.request_default is not None:
            default = declaration.request_default
        elif option.default_factory is not MISSING:
            default = Field(default_factory=option.default_factory)
        definitions[option.name] = (declaration.request_type or option.type, default)
    return definitions


if TYPE_CHECKING:

    class _RequestFields(Options, BaseModel, frozen=True):
        """The fields for the type checker, which does not see those of `create_model`."""

        backends: tuple[str, ...] | None = None

else:
    _RequestFields = create_model("_RequestFields", __base__=_Document, **_field_definitions())


class RequestOptions(_RequestFields, frozen=True):
    """The wire form of `collage.options.Options`, made from its fields without those of the machine."""

    @classmethod
    def of(cls, options: Options) -> "RequestOptions":
        """Return the wire form of options. Raises OptionError for a `Backend` object among them."""
        return cls.model_validate(options.to_fields())


class RequestedModel(_Document):
    """The files of one entry.

    Attributes:
        entry: name of the entry, default "main".
        model: digest of the ONNX file's blob.
        external: digests of the external data by file name, relative to the ONNX file; default none.
    """

    entry: str = MAIN
    model: str
    external: Mapping[str, str] = Field(default_factory=dict)


class CompileRequest(_Document):
    """One bundle for one measuring environment.

    Attributes:
        name: display name of the model.
        models: files of each entry.
        environment: name of the measuring environment, default "local".
        threads: threads of every kernel, default 1.
        device: device of the kernels, default "cpu".
        options: other options of the compile, with the shapes of the samples.
        samples: digests of the sample sets' files (`request_samples`); default none.
        settings: digest of the file of settings; "" without.
    """

    name: str
    models: tuple[RequestedModel, ...] = Field(min_length=1)
    environment: str = "local"
    threads: int = Field(default=1, ge=1)
    device: DeviceName = "cpu"
    options: RequestOptions = Field(default_factory=RequestOptions)
    samples: tuple[str, ...] = ()
    settings: str = ""

    @property
    def target(self) -> Target:
        """The device and its rules."""
        return Target(self.device)

    @property
    def text(self) -> bytes:
        """The canonical JSON: equal requests have equal bytes."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True).encode()

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text).hexdigest()

    def compile_options(
        self, store: str, cache_dir: Path, samples: UserSamples = NO_SAMPLES
    ) -> Options:
        """Return the options of a compile that shares costs through the store at this address.

        Args:
            store: address of the store.
            cache_dir: folder of the local store.
            samples: samples of the request (`request_samples.fetch_samples`); a probe needs none.
        """
        options: dict[str, Any] = dict(self.options)
        machine: dict[str, Any] = {"threads": self.threads, "device": self.device}
        machine |= {"samples": samples.sets, "inputs": samples.settings}
        return Options(**options, **machine, cache_dir=cache_dir, store=store)


class NodeInformation(_Document):
    """Information about a measuring node.

    Attributes:
        environment: hardware and system that costs depend on.
        cache_bytes: size of the last-level cache, in bytes.
        backends: identities (name and versions) of the available backends, by name.
    """

    environment: Environment
    cache_bytes: int
    backends: Mapping[str, str]


class PlanPrediction(_Document):
    """One plan of a search result, with its predicted latency."""

    name: str
    predicted_s: float
    regions: int
    backends: tuple[str, ...]


class SearchResult(_Document):
    """Result of one function's search; counts as in `collage.report.summary.CandidateCounts`."""

    function: str
    plans: tuple[PlanPrediction, ...]
    gap_s: float
    enumerated: int
    unique: int
    measured: int
    cached: int
    invalid: int
    seconds: float


class FunctionCompileResult(_Document):
    """Result of one function.

    Attributes:
        function: name of the function.
        verdict: verdict of the gate; nothing was published unless it is "not slower".
        predicted_s: predicted latency of the plan, in seconds; None for the original file.
        latency_s: latency of the bundle ("collage") and of every baseline, in seconds; None where it did
            not run.
    """

    function: str
    verdict: str
    predicted_s: float | None
    latency_s: Mapping[str, float | None]


class CompileResult(_Document):
    """Result of a compile.

    Attributes:
        bundle: digest of the bundle in the store.
        report: digest of its HTML page in the store.
        reason: decision of the gate in words.
        speedup: latency of the fastest original framework divided by the bundle's, the smallest of all
            functions; None without a framework.
        functions: results of the functions.
        plan: regions of the plan in words.
        measured: candidates that were measured.
        cached: candidates with a stored cost.
        invalid: candidates without a valid cost.
        seconds: wall time of each stage, in seconds.
    """

    bundle: str
    report: str
    reason: str
    speedup: float | None
    functions: tuple[FunctionCompileResult, ...]
    plan: tuple[str, ...]
    measured: int
    cached: int
    invalid: int
    seconds: Mapping[str, float]


class BundleAnswer(_Document):
    """Answer of the pod that builds a bundle: a result or a refusal of the gate, which is no failure.

    Attributes:
        result: result of the compile; None where the gate refused.
        refusal: reason of the refusal, "" without one.
        unproven: whether the numbers are right and only the speed is not proven.
    """

    result: CompileResult | None = None
    refusal: str = ""
    unproven: bool = False


def submit(
    store: Store,
    models: ModelPaths,
    *,
    name: str = "",
    environment: str = "local",
    threads: int = 1,
    device: DeviceName = "cpu",
    options: RequestOptions | None = None,
    samples: UserSamples = NO_SAMPLES,
) -> CompileRequest:
    """Put the models' files and the request into the store; a repetition changes nothing.

    The request keeps those backends of the options that run on the device, and has the samples' shapes.

    Args:
        store: store of requests and models.
        models: ONNX files of the entries (`collage.entries.find_entries`).
        name: display name; default that of the folder, else of the first file.
        environment: name of the measuring environment.
        threads: threads of every kernel.
        device: device of the kernels.
        options: other options; None: the defaults.

    Raises:
        OptionError: an unknown backend, none of them runs on the device, or invalid names of entries.
        ModelError: the file is no ONNX model, or its external data is missing or outside of its folder.
        StoreError: the store fails.
    """
    options = options or RequestOptions()
    entries = find_entries(models)
    if samples and len(entries) == 1:
        samples = named_samples(samples, input_names(entries[0].path))
    sets, settings, sample_content = sample_files(samples)
    put_samples(store, sample_content)
    with ExitStack() as stack:
        opened = [stack.enter_context(open_model(entry.path)) for entry in entries]
        held: dict[BlobDigest, Path] = {}
        requested = tuple(
            _stored_model(store, entry, files, held)
            for entry, files in zip(entries, opened, strict=True)
        )
        request = CompileRequest(
            name=name or _display_name(models, entries),
            models=requested,
            environment=environment,
            threads=threads,
            device=device,
            options=options.model_copy(
                update={
                    "backends": names_on(options.backends, device),
                    "shapes": shape_sets(samples, options.shapes),
                }
            ),
            samples=sets,
            settings=settings,
        )
        store.create(_key(request.digest), request.text)
        keep_blobs(store, held)
        put_samples(store, sample_content)
    return request


def _display_name(models: ModelPaths, entries: Sequence[ModelEntry]) -> str:
    if isinstance(models, str | os.PathLike) and Path(models).is_dir():
        return Path(models).absolute().name
    return entries[0].path.stem


def _stored_model(
    store: Store, entry: ModelEntry, files: ModelFiles, held: dict[BlobDigest, Path]
) -> RequestedModel:
    """Put the files of an entry into the store, and their digests and paths into `held`."""
    external = {name: put_blob(store, file.path) for name, file in files.external.items()}
    model = put_blob(store, files.own.path)
    held |= {external[name]: file.path for name, file in files.external.items()}
    held[model] = files.own.path
    return RequestedModel(entry=entry.name, model=model, external=external)


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


def fetch_models(store: Store, request: CompileRequest, folder: Path) -> tuple[ModelEntry, ...]:
    """Download the files of every entry into a folder of its own below `folder`.

    Raises:
        OptionError: the name of an entry is invalid.
        StoreError: a file is not in the store, is damaged, or would lie outside of its folder.
    """
    return tuple(
        ModelEntry(model.entry, _fetch_model(store, model, folder / f"{number}-{model.entry}"))
        for number, model in enumerate(request.models)
    )


def _fetch_model(store: Store, model: RequestedModel, folder: Path) -> Path:
    """Download the files of an entry into `folder`; return the ONNX file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.onnx"
    fetch_blob(store, BlobDigest(model.model), path)
    for name, digest in model.external.items():
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
