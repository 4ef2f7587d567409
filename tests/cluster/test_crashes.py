"""kill -9 of a measuring pod and of the controller: no cost that was in the store is measured again."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest
import yaml

from collage.cost.table import decode_lines
from collage.report.terminal import Progress
from tests.servers.played_pod import ROOT

QUIET = Progress(quiet=True)


def measured(store):
    """How often each key was measured, by what is in the store."""
    counts = Counter()
    for entry in store.entries("costs/"):
        counts.update(key for key, _ in decode_lines(store.read(entry.key).data))
    return counts


def until(ask, timeout_s=90):
    end = time.monotonic() + timeout_s
    while not (found := ask()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.03)
    return found


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


def test_a_measuring_pod_that_is_killed_mid_shard_loses_nothing(
    nodes, make_site, request_, store, core, namespace, jobs
):
    site = make_site()
    site.describe(request_)
    found = []
    search = threading.Thread(
        target=lambda: found.append(site.search(request_, "main", QUIET)), daemon=True
    )
    search.start()
    victim = until(lambda: measuring(core, namespace))[0]
    until(lambda: measured(store))
    send(nodes, namespace, victim, signal.SIGSTOP)
    before = measured(store)
    send(nodes, namespace, victim, signal.SIGKILL)
    search.join(150)
    assert found, "the search ended"
    after = measured(store)
    twice = [key for key in before if after[key] > 1]
    assert not twice, "what was in the store was measured again"
    print(f"{len(before)} costs in the store at the kill, {found[0].measured} at the end")
    assert found[0].measured >= len(before) - 1  # one of them is what a call costs, of no candidate
    again = make_site().search(request_, "main", QUIET)
    assert again.measured == 0
    assert len(jobs.find({"app.kubernetes.io/component": "measure"})) >= 1


def test_a_controller_that_is_killed_is_resumed_by_another_that_adopts_its_job(
    plane, nodes, make_site, request_, store, core, namespace, jobs, notices, s3_address, tmp_path,
    environment,
):  # fmt: skip
    site = make_site()
    site.describe(request_)
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
    found = []
    search = threading.Thread(
        target=lambda: found.append(site.search(request_, "main", QUIET)), daemon=True
    )
    search.start()
    until(lambda: any(batch.name in one and "waiting for it" in one for one in notices))
    assert jobs.find({"app.kubernetes.io/component": "measure"}) == [batch]
    send(nodes, namespace, pod, signal.SIGCONT)
    search.join(120)
    assert found, "the search ended"
    assert max(measured(store).values()) == 1, "nothing was measured twice"
    assert found[0].cached >= len(before) - 1
