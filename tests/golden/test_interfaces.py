"""Names that other programs use: wire models, settings, Jobs, Prefect, registries, metrics."""

import inspect
import re
import sqlite3
from pathlib import Path
from typing import get_origin

import pytest
import yaml
from prometheus_client import generate_latest
from pydantic import BaseModel, SecretStr

from collage.bundle.manifest import ManifestDocument
from collage.cluster.controller.environments import MeasuringEnvironment
from collage.cluster.controller.job_submission import JobSubmitter, SearchTask
from collage.cluster.controller.settings import ClusterSettings, ControllerSettings
from collage.cluster.exit_codes import BAD_INPUT, BAD_NODE, RETRY, TERMINATED
from collage.cluster.kubernetes.jobs import JobRunner
from collage.cluster.shard_reports import ShardReport
from collage.cluster.shards import Batch, KeyedRequest
from collage.cost import CostKey
from collage.measure.measurement_request import MeasurementRequest
from collage.options import Options
from collage.pipeline.request import (
    BundleAnswer,
    CompileRequest,
    CompileResult,
    NodeInformation,
    SearchResult,
)
from collage.registry.base import VersionStatus, to_tags
from collage.release_names import released
from collage.report.data import ReportData
from collage.report.explanation import Difference, NodeExplanation, Overview
from collage.report.summary import Summary
from collage.runtime.dispatch import DispatchCounts
from collage.settings import CollageSettings, variables
from collage.store.directory import DirectoryStore
from containers.receiver import Receiver
from containers.receiver_settings import ReceiverSettings
from containers.serving.metrics import Metrics
from flows.artifacts import plan_ready, report_link, verdict
from flows.garbage import collect_garbage
from flows.names import limit_name, model_resource, optimized_alias, version_alias
from flows.optimize import optimize_model
from flows.reconcile import reconcile_registry
from flows.results import Outcome, Submitted
from flows.settings import FlowSettings
from flows.setup import zombie_automation
from tests.support.golden import check_golden
from tests.support.golden_inputs import CPU, REQUEST
from tests.support.shapes import schema_of

ROOT = Path(__file__).parents[2]
MODELS = {
    "request": CompileRequest, "result": CompileResult, "node": NodeInformation, "search": SearchResult,
    "answer": BundleAnswer, "batch": Batch, "shard": ShardReport, "manifest": ManifestDocument,
    "summary": Summary, "report": ReportData, "node explanation": NodeExplanation,
    "overview": Overview, "difference": Difference, "submitted": Submitted, "outcome": Outcome,
    "environment of a cluster": MeasuringEnvironment,
}  # fmt: skip
SOURCES = ("collage/**/*.py", "flows/*.py", "containers/**/*.py", "native/**/*.cc", "prefect.yaml",
           "Dockerfile", "helm/**/*.yaml", "helm/**/*.tpl")  # fmt: skip


class Submission(Exception):
    """A Job was submitted."""


@pytest.mark.parametrize("name", MODELS)
def test_fields_of_wire_models(name):
    check_golden(f"schema_{name.replace(' ', '_')}.json", schema_of(MODELS[name]))


def test_options_of_a_compile():
    check_golden("compile_options.json", list(inspect.signature(Options).parameters))


def nested(settings, prefix):
    """The variables of a model of settings, with those of the models inside."""
    for name, field in settings.model_fields.items():
        yield f"{prefix}{name}".upper()
        if get_origin(field.annotation) is tuple:
            continue  # the variable holds all of it, as JSON
        for inner in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                yield from nested(inner, f"{prefix}{name}__")


def test_variables_of_settings():
    found = {
        "all": variables(CollageSettings),
        "controller": sorted(
            {*variables(ControllerSettings), *nested(ControllerSettings, "COLLAGE_")}
        ),
        "flows": sorted({*variables(FlowSettings), *nested(FlowSettings, "COLLAGE_")}),
        "receiver": variables(ReceiverSettings),
    }
    check_golden("settings.json", found)


def test_variables_in_sources():
    """A variable that a source names by its whole name; guards of C++ headers are none."""
    found = set()
    for pattern in SOURCES:
        for file in ROOT.glob(pattern):
            text = file.read_text(errors="replace")
            named = (
                r'getenv\("(COLLAGE_\w+)"' if file.suffix == ".cc" else r"\b(COLLAGE_[A-Z0-9_]+)"
            )
            found |= {name for name in re.findall(named, text) if not name.endswith("_")}
    check_golden("variables.json", sorted(found))


def test_defaults_of_settings():
    """What a receiver and the flows do where nothing says otherwise: aliases, deployments, ports."""
    found = {
        name: {
            field: str(one.default)
            for field, one in sorted(settings.model_fields.items())
            if not (one.is_required() or one.default_factory or isinstance(one.default, SecretStr))
            if one.default is not None
        }
        for name, settings in (("flows", FlowSettings), ("receiver", ReceiverSettings))
    }
    check_golden("defaults.json", found)


class RecordedJobs:
    """A cluster that remembers the first Job it is given."""

    def __init__(self):
        self.made = None

    def create(self, manifest):
        self.made = manifest
        raise Submission


def test_names_and_labels_of_jobs(tmp_path, monkeypatch):
    for name in ("COLLAGE_IMPORT_MEMORY", "COLLAGE_IMPORT_SECONDS", "COLLAGE_IMPORT_NODES"):
        monkeypatch.delenv(name, raising=False)
    settings = ClusterSettings(measure_image="measure:1", controller_image="controller:1")
    jobs = RecordedJobs()
    environment = MeasuringEnvironment(threads=2, cpu=3, parallelism=2)
    runner = JobRunner(jobs, environment, settings, lambda text: None)
    search = SearchTask(
        REQUEST.digest, "main", "e" * 64, "pool", CPU, {"example": "example 1"},
        {"example": "native"}, "s3://bucket/prefix",
    )  # fmt: skip
    sender = JobSubmitter(search, runner, DirectoryStore(tmp_path), None)
    wanted = [KeyedRequest(CostKey("c" * 64), MeasurementRequest("main", 0b11, "example"))]
    with pytest.raises(Submission):
        sender.measure(wanted, lambda: None)
    made = jobs.made
    (container,) = made.spec.template.spec.containers
    check_golden(
        "job.json",
        {
            "name": made.metadata.name,
            "labels": made.metadata.labels,
            "annotations": made.metadata.annotations,
            "pod labels": made.spec.template.metadata.labels,
            "container": container.name,
            "arguments": container.args,
            "variables": [one.name for one in container.env],
            "exit codes": [RETRY, BAD_INPUT, BAD_NODE, TERMINATED],
        },
    )


@pytest.fixture
def prefect_calls(monkeypatch):
    """What the records of a run tell Prefect, in order."""
    calls = []

    def told(name):
        return lambda *arguments, **named: calls.append((name, arguments, named))

    for record in (plan_ready, verdict, report_link):
        for name in ("emit_event", "create_table_artifact", "create_markdown_artifact",
                     "create_link_artifact"):  # fmt: skip
            monkeypatch.setitem(record.__wrapped__.__globals__, name, told(name))
    return calls


def test_events_and_artifacts(prefect_calls, tmp_path):
    found = SearchResult(
        function="main", plans=(), gap_s=0.0, enumerated=1, unique=1, measured=1, cached=0,
        invalid=0, seconds=1.0,
    )  # fmt: skip
    plan_ready("PP-OCR_v4", REQUEST, found)
    for status, moved in (("optimized", True), ("not-faster", False)):
        verdict("PP-OCR_v4", "3", Outcome(
            environment="pool", status=status, reason="why", bundle="b" * 64, alias="a/3/pool",
            moved=moved,
        ))  # fmt: skip
    report_link("PP-OCR_v4", "pool", str(tmp_path), "e" * 64)
    events = [
        {"event": arguments[0], "resource": arguments[1], "payload": sorted(named["payload"])}
        for name, arguments, named in prefect_calls
        if name == "emit_event"
    ]
    keys = [named["key"] for name, _, named in prefect_calls if name != "emit_event"]
    flows = {
        one.name: list(one.parameters.properties)
        for one in (optimize_model, reconcile_registry, collect_garbage)
    }
    deployments = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
    check_golden(
        "prefect.json",
        {
            "events": events,
            "artifacts": keys,
            "flows": flows,
            "deployments": [
                released(one["name"].removesuffix("{{ $COLLAGE_SUFFIX }}"), release)
                for one in deployments
                for release in ("", "models.collage")
            ],
            "triggers": [
                event
                for one in deployments
                for trigger in one.get("triggers", ())
                for event in trigger["expect"]
            ],
            "limits": [limit_name("pool", release) for release in ("", "models.collage")],
            "automation": zombie_automation().name,
            "aliases": [version_alias("my model", "3", "pool"), optimized_alias("m", "pool")],
            "resources": [
                model_resource("my model", release) for release in ("", "models.collage")
            ],
        },
    )


def test_tags_of_versions():
    status = VersionStatus("optimized", "b" * 64, 1.5, "local: faster", "local=0a1b")
    check_golden("tags.json", to_tags(status))


COUNTS = DispatchCounts({"main": 5}, {"main": 2}, 3, {"x: [1, 7]": 2}, {"x: [9, 9]": 3})


def test_metrics(tmp_path):
    settings = ReceiverSettings(
        secret="s" * 32, prefect_api_url="http://prefect/api", journal=tmp_path / "receiver.db"
    )
    receiver = Receiver(settings, lambda start: None)
    received = generate_latest(receiver.metrics).decode()
    served = Metrics("small", "3")
    served.count("small", 200, 0.003)
    database = sqlite3.connect(tmp_path / "receiver.db")
    tables = database.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    database.close()
    lines = [line for line in received.splitlines() if not line.startswith("#")]
    check_golden(
        "metrics.json",
        {
            "receiver": sorted(
                {line.rpartition(" ")[0] for line in lines if "_created" not in line}
            ),
            "server": served.text({"ready": 1}, {"small": [COUNTS]}).splitlines(),
            "tables": sorted(" ".join(sql.split()) for (sql,) in tables),
        },
    )
