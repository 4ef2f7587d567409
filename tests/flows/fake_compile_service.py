"""A compile service with scripted answers, for tests of what a flow does around measuring."""

import json
import threading

from collage.cost import Environment
from collage.pipeline.request import (
    CompileResult,
    FunctionCompileResult,
    NodeInformation,
    PlanPrediction,
    SearchResult,
)
from collage.runtime.bundle_folder import MANIFEST
from collage.store import open_store
from collage.store.blobs import digest_of
from collage.store.bundle_statements import BundleSigning
from collage.store.bundles import publish_bundle
from collage.store.statement import SignedModel
from collage.store.usage import UsageRecord, record_usage, today
from collage.store.usage_limits import LimitCheck
from flows.settings import flow_settings


class FakeCompileService:
    """A `CompileService`; `errors` maps (environment, step) to the errors of its calls, in order.

    `usage` maps "probe", "search" and "finish" to what a call of it uses.
    """

    def __init__(self, store, folder, functions=("main",)):
        self.store, self.folder, self.names = store, folder, functions
        self.errors = {}
        self.driver = {}
        self.signs = True
        self.calls = []
        self.usage = {}
        self.owners = set()
        self.requests = []
        self._made = 0
        self._lock = threading.Lock()

    def on_behalf_of(self, owner, limits, since):
        return OwnedService(self, owner, limits, since)

    def probe(self, request):
        self._call(request, "probe")
        environment = Environment(
            cpu="fake", cpu_features="", cores=1, threads=request.threads,
            driver=self.driver.get(request.environment, ""), protocol="test",
        )  # fmt: skip
        return NodeInformation(
            environment=environment, cache_bytes=1 << 20, backends={"one": "one v=1"}
        )

    def functions(self, request):
        return self.names

    def search(self, request, function, progress):
        self._call(request, f"search {function}")
        with progress.stage("measure", 2) as stage:
            stage.advance(2, cached=1)
        plan = PlanPrediction(name="best", predicted_s=1e-3, regions=2, backends=("one",))
        return SearchResult(
            function=function, plans=(plan,), gap_s=0.0, enumerated=2, unique=2, measured=1, cached=1,
            invalid=0, seconds=0.1,
        )  # fmt: skip

    def finish(self, request, progress):
        self._call(request, "finish")
        with self._lock:
            self._made += 1
            folder = self.folder / f"bundle-{self._made}"
        latency_s = 1e-3 / self._made
        signing = flow_settings().signing()
        by = (
            BundleSigning(signing, SignedModel.of_registry(request.name, request=request.digest))
            if signing
            else None
        )
        created = _bundle(folder, latency_s)
        bundle = publish_bundle(
            open_store(self.store), created, signing=by if self.signs else None
        ).digest
        times = {"collage": latency_s, "onnxruntime": 1.25 * latency_s, "openvino": None}
        function = FunctionCompileResult(
            function="main", verdict="not slower", predicted_s=1e-3, latency_s=times
        )
        return CompileResult(
            bundle=bundle, report=digest_of(b"report"), reason="", speedup=1.25, functions=(function,),
            plan=("2 nodes on one",), measured=0, cached=2, invalid=0, seconds={"verify": 1.0},
        )  # fmt: skip

    def count(self, step):
        return sum(call == step for _, call in self.calls)

    def _call(self, request, step):
        self.calls.append((request.environment, step))
        self.requests.append(request)
        errors = self.errors.get((request.environment, step), [])
        if errors:
            raise errors.pop(0)


class OwnedService:
    """The fake service for one owner: each step uses what `service.usage` says, as a Job would."""

    def __init__(self, service, owner, limits, since):
        self._service, self._owner = service, owner
        self._store = open_store(service.store)
        self._check = LimitCheck(self._store, owner, tuple(limits), since or today())

    def probe(self, request):
        self._count(request, "probe")
        return self._service.probe(request)

    def functions(self, request):
        return self._service.functions(request)

    def search(self, request, function, progress):
        self._count(request, "search")
        return self._service.search(request, function, progress)

    def finish(self, request, progress):
        self._count(request, "finish")
        return self._service.finish(request, progress)

    def _count(self, request, step):
        self._service.owners.add(self._owner)
        usage = self._service.usage.get(step)
        if usage:
            self._check.require_room()
            work = f"{self._owner.run} {request.environment} {step}"
            record = UsageRecord(
                self._owner, request.environment, work=work, usage=usage, ended=today()
            )
            record_usage(self._store, record)


def registered(settings, model, name="small", version="1"):
    """Add a version to the registry of the settings and let it ask to be optimized."""
    from flows.tasks import configured_registry

    registry = configured_registry(settings)
    registry.set_alias(registry.add(name, version, {"model.onnx": model}))
    return registry


def gate_entry(latency_s, verdict="not slower", function="main"):
    """Build what a manifest says of one function."""
    return {
        "function": function, "original": "", "latency": {"collage": {"seconds": latency_s}}, "ratios": {},
        "verdict": verdict, "reason": "", "deterministic": True,
    }  # fmt: skip


def _bundle(folder, latency_s):
    folder.mkdir(parents=True)
    files = {"model.so": b"code", "report.html": b"report"}
    for name, data in files.items():
        (folder / name).write_bytes(data)
    manifest = {
        "schema_version": 3, "executable": "model.so", "functions": [], "threads": 1,
        "cpu": {"model": "cpu", "features": []}, "libraries": {},
        "gate": [gate_entry(latency_s)],
        "provenance": {
            "models": [{"path": "model.onnx", "sha256": "0" * 64}], "collage_version": "0",
            "environment_digest": "fake", "seed": 0,
        },
        "files": {name: digest_of(data) for name, data in files.items()},
    }  # fmt: skip
    (folder / MANIFEST).write_text(json.dumps(manifest))
    return folder
