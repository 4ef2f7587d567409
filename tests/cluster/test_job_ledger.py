"""What the Jobs of a run used, on the real Job controller: retries, killed, evicted and given up pods."""

import pytest
from kubernetes import client

from collage.cluster.kubernetes import job_ledger
from collage.cluster.kubernetes.api import Jobs
from collage.cluster.kubernetes.job_ledger import JobLedger
from collage.cluster.kubernetes.jobs import Ending, JobRunner
from collage.errors import ClusterError, LimitError
from collage.pipeline.request import RequestOptions, submit
from collage.report.progress import SilentProgress
from collage.store.usage import (
    Usage,
    WorkOwner,
    day_prefix,
    list_run_usage,
    list_usage,
    today,
    total,
)
from collage.store.usage_limits import Limit, LimitCheck
from tests.cluster.test_jobs import FOREVER, Waiting, pods, task, until, up

pytestmark = pytest.mark.full

OWNER = WorkOwner("run-1", "my model", "3", "team/a")


@pytest.fixture
def ledger(jobs, store):
    return JobLedger(jobs, store, "pool", OWNER)


@pytest.fixture
def runner(nodes, jobs, environment, settings, notices, ledger):
    return JobRunner(jobs, environment, settings, notices.append, ledger=ledger)


def container_s(core, namespace, name=None):
    """Sum the times of main containers, as the pods themselves have them."""
    listed = pods(core, namespace, name) if name else core.list_namespaced_pod(namespace).items
    ended = [
        status.state.terminated
        for pod in listed
        for status in pod.status.container_statuses or ()
        if status.name == "measure" and status.state.terminated
    ]
    return sum((state.finished_at - state.started_at).total_seconds() for state in ended)


def recorded(store, owner=OWNER):
    return total(list_run_usage(store, owner, today(), today()))


def test_retries_and_every_index_count(runner, core, namespace, store):
    code = "import os,sys,time; time.sleep(1.2); sys.exit(int(os.environ['JOB_COMPLETION_INDEX']))"
    runner.submit(task("retried", code, indices=2))
    end = runner.wait("retried")
    assert (end.ending, end.failed_indices) == (Ending.FAILED, "1")
    assert len(pods(core, namespace, "retried")) == 4, "one index was tried three times"
    usage = recorded(store)
    assert usage.node_s >= 3
    assert usage.node_s == pytest.approx(container_s(core, namespace, "retried"), abs=0.01)
    assert (usage.cpu_s, usage.gpu_s) == (usage.node_s, 0.0)


def test_an_evicted_pod_counts_though_it_is_gone(
    runner, core, nodes, namespace, store, monkeypatch
):
    monkeypatch.setattr(job_ledger, "USAGE_S", 0.0)
    seen, list_usage_of = [], Jobs.pod_usage

    def watched(jobs, name):
        seen.extend(list_usage_of(jobs, name))
        return list_usage_of(jobs, name)

    monkeypatch.setattr(Jobs, "pod_usage", watched)
    runner.submit(task("evicted", FOREVER.replace("120", "8")))
    waiting = Waiting(runner, "evicted")
    first = up(core, nodes, namespace, "evicted")
    until(lambda: any(pod.pod == first and pod.usage.node_s >= 1 for pod in seen))
    core.create_namespaced_pod_eviction(first, namespace, {"metadata": {"name": first}})
    assert waiting.end(90).ending is Ending.COMPLETE
    present_s = container_s(core, namespace, "evicted")
    assert recorded(store).node_s > present_s
    (entry,) = store.entries(day_prefix(today()))
    assert first.encode() in store.read(entry.key).data


def test_a_job_that_is_given_up_counts(runner, environment, store):
    runner.environment = environment.model_copy(update={"deadline_seconds": 2})
    runner.submit(task("long", FOREVER))
    with pytest.raises(ClusterError, match="deadlineSeconds"):
        runner.wait("long")
    assert recorded(store).node_s >= 1.5


def test_the_next_run_records_what_nobody_saw(runner, ledger, core, namespace, store, jobs):
    runner.ledger = None
    runner.submit(task("unseen", "import time; time.sleep(1.1)"))
    runner.wait("unseen")
    assert recorded(store) == Usage()
    for _ in range(2):
        ledger.record_unseen({"collage.dev/run": "r"})
        assert recorded(store).node_s == pytest.approx(container_s(core, namespace), abs=0.01)
    other = JobLedger(jobs, store, "pool", WorkOwner("run-2", "my model", "3", "team/a"))
    other.record_unseen({"collage.dev/run": "r"})
    assert len(list_usage(store, day_prefix(today()))) == 1


def test_beyond_a_limit_no_job_is_created(runner, ledger, jobs, store):
    runner.submit(task("first", "import time; time.sleep(1.5)"))
    runner.wait("first")
    check = LimitCheck(store, OWNER, (Limit("team", node_s=1.0, setting="X"),), today())
    runner.ledger = JobLedger(jobs, store, "pool", OWNER, check)
    with pytest.raises(LimitError, match=r"the team 'team/a' has used .* raise X"):
        runner.submit(task("second", "pass"))
    assert jobs.read("second") is None


def test_a_request_is_labelled_and_adds_up(
    nodes, make_service, store, core, namespace, tmp_path, jobs
):
    """Probe, search and finish of a request: the records are what all pods of the namespace ran."""
    from tests.support.models import small_model

    options = RequestOptions(
        backends=("onnxruntime",), measure_budget_s=10, refine_s=0, verify_s=0.1
    )
    model = small_model(tmp_path / "small.onnx")
    request = submit(store, model, name="my model", environment="pool", options=options)
    service = make_service().on_behalf_of(OWNER)
    service.probe(request)
    service.search(request, "main", SilentProgress())
    usage = recorded(store)
    assert usage.node_s > 0
    assert usage.node_s == pytest.approx(container_s(core, namespace), abs=0.01)
    listed = client.BatchV1Api(core.api_client).list_namespaced_job(namespace).items
    assert len(listed) >= 2
    for job in listed:
        labels = job.metadata.labels
        assert labels["collage.dev/model"] == OWNER.labels["model"] != "my model"
        assert labels["collage.dev/team"] == OWNER.labels["team"]
        assert job.spec.template.metadata.labels["collage.dev/team"] == OWNER.labels["team"]
