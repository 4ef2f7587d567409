"""Requests on a real control plane: searched here, measured and finished in pods."""

import re
import threading
import time
from collections import Counter

import pytest

from collage.cluster.controller.measurer import ClusterMeasurer
from collage.cluster.kubernetes.jobs import JobRunner
from collage.cluster.shard_reports import ShardReport, ShardReports
from collage.cluster.shards import Batch
from collage.errors import ClusterError, OptionError
from collage.pipeline.request import RequestOptions
from collage.report.progress import SilentProgress
from collage.store.blobs import get_blob
from collage.store.bundles import fetch_bundle
from tests.cluster.conftest import measured

pytestmark = pytest.mark.full

QUIET = SilentProgress()


def job_names(jobs, component):
    return [job.name for job in jobs.find({"app.kubernetes.io/component": component})]


def test_jobs_measure_a_request_and_a_rerun_measures_nothing(
    nodes, make_service, request_, store, jobs, notices, tmp_path
):
    service = make_service()
    facts = service.probe(request_)
    assert set(facts.backends) == {"onnxruntime", "onednn"}
    assert service.functions(request_) == ("main",)
    searched = service.search(request_, "main", QUIET)
    assert searched.measured > 10
    batches = job_names(jobs, "measure")
    assert len(batches) >= 2
    assert not any("given up" in notice for notice in notices)

    again = make_service()  # another process, with nothing of its own
    second = again.search(request_, "main", QUIET)
    assert (second.measured, second.gap_s) == (0, searched.gap_s)
    assert job_names(jobs, "measure") == batches

    result = again.finish(request_, QUIET)
    assert result.measured == 0
    assert result.functions[0].latency_s["collage"] > 0
    assert fetch_bundle(store, result.bundle, tmp_path / "bundle") == result.bundle


def test_backend_groups_have_simultaneous_jobs(
    nodes, make_service, request_, store, jobs, environment
):
    changes = {"backend_groups": {"mine": ("onednn",)}, "seconds_per_group": 0.0}
    service = make_service(environment=environment.model_copy(update=changes))
    facts = service.probe(request_)
    searched = service.search(request_, "main", QUIET)
    groups = Counter()
    for job in jobs.find({"app.kubernetes.io/component": "measure"}):
        batch = Batch.model_validate_json(get_blob(store, job.notes["collage.dev/batch"]))
        groups[(job.notes["collage.dev/groups"], *sorted(batch.backends))] += 1
    assert groups.keys() == {("mine", "onednn"), ("graph", "onnxruntime")}
    counts = measured(store, facts.environment)
    assert len(counts) == searched.measured
    assert set(counts.values()) == {1}


def test_the_budget_counts_measuring_and_not_the_queue(
    nodes, make_service, request_, core, monkeypatch
):
    service = make_service()
    service.probe(request_)
    waited_s = []
    monkeypatch.setattr(ClusterMeasurer, "close", lambda self: waited_s.append(self.waited_s))
    names = [node.name for node in nodes]
    for name in names:
        core.patch_node(name, {"spec": {"unschedulable": True}})
    freed = threading.Timer(
        15, lambda: [core.patch_node(n, {"spec": {"unschedulable": None}}) for n in names]
    )
    freed.start()
    start = time.monotonic()
    service.search(request_, "main", QUIET)
    taken_s = time.monotonic() - start
    freed.join()
    assert 15 < waited_s[0] < taken_s - 2


def test_costs_from_a_throttled_node_are_measured_again_once(
    nodes, make_service, request_, store, notices, environment
):
    service = make_service(environment=environment.model_copy(update={"control_tolerance": 0.25}))
    facts = service.probe(request_)
    records = ShardReports(store, facts.environment)
    for number in range(60):  # other nodes that were ten thousand times as fast
        records.put(
            ShardReport(
                batch="earlier", index=number, pod="p", node="n", began=0.0, ended=1.0,
                before_s={"cpu": 1e-9}, after_s={"cpu": 1e-9}, costs={}, built=0,
            )
        )  # fmt: skip
    searched = service.search(request_, "main", QUIET)
    counts = measured(store, facts.environment)
    assert set(counts.values()) == {2}
    assert len(counts) == searched.measured / 2
    discards = [notice for notice in notices if "off its usual time, more than 25%" in notice]
    assert any(re.search(r": (\d+) of \1 costs are discarded", notice) for notice in discards)
    assert service.search(request_, "main", QUIET).measured == 0, "the second costs stay"
    assert len([notice for notice in notices if "off its usual time" in notice]) == len(discards)


def test_a_wrong_image_fails_within_a_minute_with_the_reason(nodes, make_service, request_, jobs):
    with pytest.raises(ClusterError, match=r"ImagePull.*nowhere/measure:9.*not found"):
        make_service(measure_image="nowhere/measure:9").probe(request_)
    assert not any(not job.ended for job in jobs.find({}))


def test_a_missing_secret_fails_with_its_name(nodes, make_service, request_):
    with pytest.raises(
        ClusterError, match=r'CreateContainerConfigError: secret "absent" not found'
    ):
        make_service(env_from_secrets=("absent",)).probe(request_)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"environment": "other"}, "no measuring environment 'other' is configured, only pool"),
        ({"threads": 2}, "asks for 2 threads, the environment 'pool' has 1"),
    ],
)
def test_what_is_not_configured_is_refused(make_service, request_, change, message):
    with pytest.raises(OptionError, match=message):
        make_service().probe(request_.model_copy(update=change))


def test_an_unknown_backend_fails_at_once_with_the_pods_words(nodes, make_service, store, request_):
    options = RequestOptions(backends=("onnxruntime", "no-such-one"))
    request = request_.model_copy(update={"options": options})
    store.create(f"requests/{request.digest}.json", request.text)
    with pytest.raises(ClusterError, match=r"(?s)PodFailurePolicy.*no-such-one"):
        make_service().probe(request)


def test_kubernetes_says_no(plane, make_service, request_, namespace, settings, environment):
    from collage.cluster.kubernetes.api import Jobs
    from collage.cluster.kubernetes.manifests import JobTask, Kind

    token = plane.account_token(namespace, "default")
    with plane.client(token) as api:
        runner = JobRunner(Jobs(namespace, api), environment, settings, print)
        with pytest.raises(ClusterError, match=r"403: .*give its service account the Role"):
            runner.submit(JobTask(Kind.PROBE, "no", {}, []))
