"""kill -9 of a measuring pod and of the controller: no cost that was in the store is measured again.

A pod is killed `KILLS` times (`tests.kills`), each time of a search in a store of its own.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from statistics import median

import pytest
import yaml

from collage.cluster.controller.compile_service import ClusterCompileService
from collage.pipeline.request import submit
from collage.report.progress import SilentProgress
from collage.store import open_store
from tests.cluster.conftest import measured
from tests.kills import ALONE, KILLS, NOISE
from tests.servers.played_pod import ROOT
from tests.support.models import small_model
from tests.support.waiting import wait_for

pytestmark = pytest.mark.full
until = partial(wait_for, timeout_s=90, every_s=0.03)

QUIET = SilentProgress()


def measuring(core, namespace):
    labels = "app.kubernetes.io/component=measure"
    running = core.list_namespaced_pod(
        namespace, label_selector=labels, field_selector="status.phase=Running"
    )
    return [pod.metadata.name for pod in running.items]


def send(nodes, namespace, pod, number):
    for node in nodes:
        node.signal(namespace, pod, number)


@pytest.fixture
def environment(environment):
    return environment.model_copy(update={"parallelism": 1, "seconds_per_shard": 200})


class Search(threading.Thread):
    """A search in a thread; `end` returns what it found."""

    def __init__(self, service, request):
        super().__init__(daemon=True)
        self.service, self.request, self.found, self.error = service, request, None, None
        self.start()

    def run(self):
        try:
            self.found = self.service.search(self.request, "main", QUIET)
        except Exception as error:
            self.error = error

    def end(self, timeout_s=200):
        self.join(timeout_s)
        assert self.found, f"the search did not end well: {self.error}"
        return self.found


def kill_a_pod(nodes, core, namespace, store, search, begun, seconds):
    """kill -9 a measuring pod; return what the store had then, and the pod's name.

    It is killed some seconds after it started or, with `begun`, after its first costs were in the store.
    """
    until(lambda: measuring(core, namespace) or not search.is_alive())
    if begun:
        until(lambda: measured(store) or not search.is_alive())
    time.sleep(seconds)
    victim = until(lambda: measuring(core, namespace) or not search.is_alive())
    assert search.is_alive(), "it ended before it was killed"
    send(nodes, namespace, victim[0], signal.SIGSTOP)
    before = measured(store)
    send(nodes, namespace, victim[0], signal.SIGKILL)
    return before, victim[0]


@pytest.mark.timeout(300 + 150 * KILLS)
def test_a_killed_measuring_pod_loses_nothing(
    nodes, settings, environment, jobs, request_, address_below, core, namespace, tmp_path
):
    chance = random.Random(os.getpid())
    options = request_.options.model_copy(update={"measure_budget_s": 10})
    predicted_s = []
    for number in range(KILLS):
        address = address_below(f"kill-{number}")
        store = open_store(address)
        model = small_model(tmp_path / "small.onnx")
        request = submit(store, model, environment="pool", options=options)

        def service(folder, address=address):
            return ClusterCompileService(
                address, tmp_path / folder, settings, {"pool": environment}, jobs=jobs
            )

        first = service(f"{number}-first")
        first.probe(request)
        search = Search(first, request)
        begun = bool(number % 2)
        seconds = chance.uniform(0.0, 2.0 if begun else 8.0)
        before, victim = kill_a_pod(nodes, core, namespace, store, search, begun, seconds)
        searched = search.end()
        after = measured(store)
        assert before.keys() <= after.keys(), "a cost was lost"
        assert set(after.values()) == {1}, "a cost that was in the store was measured again"
        assert len(after) == searched.measured + 1, "the cost of a call is of no candidate"
        again = service(f"{number}-again").search(request, "main", QUIET)
        assert again.measured == 0
        assert again.plans == searched.plans
        predicted_s.append(min(plan.predicted_s for plan in searched.plans))
        print(
            f"kill {number}: {victim}: {len(before)} of {len(after)} costs in the store, "
            f"{len(after) - len(before)} measured afterwards, none twice; "
            f"plan {predicted_s[-1] * 1e6:.1f} us"
        )
        for job in jobs.find({}):
            jobs.delete(job.name)
    typical_s = median(predicted_s)
    if ALONE:
        assert all(typical_s / NOISE < latency_s < typical_s * NOISE for latency_s in predicted_s)


def test_a_new_controller_adopts_the_job_of_a_killed_one(
    plane, nodes, make_service, request_, store, core, namespace, jobs, notices, s3_address, tmp_path,
    environment,
):  # fmt: skip
    service = make_service()
    service.probe(request_)
    plane.kubeconfig(tmp_path / "kubeconfig", namespace=namespace)
    written = {"pool": environment.model_dump(mode="json", by_alias=True)}
    (tmp_path / "environments.yaml").write_text(yaml.safe_dump(written))
    command = [sys.executable, "-m", "tests.cluster.controller", s3_address, request_.digest]
    controller = subprocess.Popen(
        [*command, namespace, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "KUBECONFIG": str(tmp_path / "kubeconfig")},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until(lambda: controller.poll() is not None or measured(store))
        assert controller.poll() is None, controller.stderr.read()
        (pod,) = measuring(core, namespace)
        send(nodes, namespace, pod, signal.SIGSTOP)  # else it may end before it is looked for
        before = measured(store)
    finally:
        controller.kill()
        controller.communicate()
    (batch,) = jobs.find({"app.kubernetes.io/component": "measure"})
    search = Search(service, request_)
    until(lambda: any(batch.name in notice and "waiting for it" in notice for notice in notices))
    assert jobs.find({"app.kubernetes.io/component": "measure"}) == [batch]
    send(nodes, namespace, pod, signal.SIGCONT)
    searched = search.end()
    assert max(measured(store).values()) == 1, "nothing was measured twice"
    assert searched.cached >= len(before) - 1
