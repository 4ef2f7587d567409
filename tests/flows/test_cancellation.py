"""A cancelled run's Jobs end, those that another run waits for stay; late reconciles are cancelled."""

from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("prefect")
pytest.importorskip("kubernetes")

from prefect import flow
from prefect.runtime import flow_run
from prefect.states import Cancelled, Cancelling, Running, Scheduled

from collage.cluster.kubernetes import api
from collage.cluster.kubernetes.api import JobView
from flows import cancellation
from flows.optimize import optimize_model
from flows.ownership import owner_tag
from flows.settings import flow_settings
from tests.support.golden_inputs import REQUEST

DIGESTS = ("a" * 64, "b" * 64)


class FakeJobs:
    """The Jobs of a namespace, by their label `collage.dev/run`."""

    def __init__(self, jobs):
        self.jobs, self.deleted = jobs, []

    def find(self, labels):
        ((name, value),) = labels.items()
        assert name == "collage.dev/run"
        return self.jobs.get(value, [])

    def delete(self, name):
        self.deleted.append(name)


@pytest.fixture
def target(server, client, own_deployments, settings, monkeypatch):
    """The deployment of `optimize_model` in a cluster's installation; no worker serves it."""
    values = {"NAMESPACE": "ns", "MEASURE_IMAGE": "m", "CONTROLLER_IMAGE": "c"}
    for name, value in values.items():
        monkeypatch.setenv(f"COLLAGE_CLUSTER__{name}", value)
    created = client.create_deployment(
        client.create_flow_from_name("optimize-model"), "optimize",
        entrypoint="flows.optimize.optimize_model", tags=[owner_tag(settings)],
    )  # fmt: skip
    return client.read_deployment(created)


@pytest.fixture
def jobs(monkeypatch):
    created = FakeJobs({
        digest[:32]: [JobView(f"runs-{digest[0]}", {}), JobView(f"ended-{digest[0]}", {}, complete=True)]
        for digest in DIGESTS
    })  # fmt: skip
    monkeypatch.setattr(api, "connect", lambda namespace: created)
    return created


@pytest.fixture
def start(client, target):
    """Start a run in a state, with requests of these digests."""

    def start(state, *digests):
        run = client.create_flow_run_from_deployment(target.id, parameters={"model": "m"})
        labels = {
            f"{cancellation.REQUEST}{number}": digest for number, digest in enumerate(digests)
        }
        client.update_flow_run_labels(run.id, labels)
        client.set_flow_run_state(run.id, state, force=True)
        return client.read_flow_run(run.id)

    return start


def test_a_run_notes_its_requests(server, client, settings):
    @flow
    def noting():
        cancellation.note_requests([REQUEST])
        return flow_run.id

    run = client.read_flow_run(noting())
    assert run.labels[f"{cancellation.REQUEST}{REQUEST.environment}"] == REQUEST.digest


def test_the_hook_ends_the_running_jobs_of_its_run(start, jobs):
    run = start(Cancelling(), *DIGESTS)
    (hook,) = optimize_model.on_cancellation_hooks
    hook(optimize_model, run, run.state)
    assert jobs.deleted == ["runs-a", "runs-b"]


def test_jobs_that_a_living_run_waits_for_stay(start, jobs):
    run = start(Cancelling(), *DIGESTS)
    start(Running(), DIGESTS[1])
    cancellation.end_jobs(optimize_model, run, run.state)
    assert jobs.deleted == ["runs-a"]


def test_reconcile_ends_jobs_of_runs_whose_worker_is_gone(start, jobs, client, target, monkeypatch):
    start(Cancelled(), DIGESTS[0])
    start(Running(), DIGESTS[1])
    end = cancellation.end_jobs_of_cancelled_runs
    assert end(client, target, flow_settings()) == [], "its worker has two minutes"
    monkeypatch.setattr(cancellation, "_HOOK_TIME", timedelta(0))
    assert end(client, target, flow_settings()) == ["runs-a"]


@pytest.fixture
def asked(monkeypatch):
    """What reconcile's task was asked, in place of its work."""
    from flows import reconcile

    asked = []
    monkeypatch.setattr(reconcile, "retried", lambda *_: lambda value: asked.append(value) or [])
    return asked


def test_a_reconcile_does_the_work_of_late_ones(
    server, client, own_deployments, settings, asked, monkeypatch
):
    from flows.reconcile import reconcile_registry

    created = client.create_deployment(
        client.create_flow_from_name("reconcile-registry"), "reconcile",
        entrypoint="flows.reconcile.reconcile_registry",
    )  # fmt: skip
    monkeypatch.setenv("PREFECT__RUNTIME__DEPLOYMENT__ID", str(created))

    def scheduled(minutes, **parameters):
        time = datetime.now(UTC) + timedelta(minutes=minutes)
        return client.create_flow_run_from_deployment(
            created, parameters=parameters, state=Scheduled(scheduled_time=time)
        )

    late = [scheduled(-30), scheduled(-20, check_environments=True), scheduled(-10)]
    future = scheduled(10)
    assert reconcile_registry(return_state=True).is_completed()
    assert all(client.read_flow_run(run.id).state.is_cancelled() for run in late)
    assert client.read_flow_run(future.id).state.is_scheduled()
    reconcile_registry()
    assert asked == [True, False], "the probe of a cancelled run is made up for"
