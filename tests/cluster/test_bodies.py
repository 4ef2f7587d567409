"""Bodies of control flow on a cluster: searched by Jobs, assembled by the pod that builds the bundle."""

import contextlib

import pytest

from collage.cluster.shards import Batch
from collage.errors import UnprovenError
from collage.pipeline.request import RequestOptions, submit
from collage.report.progress import SilentProgress
from collage.store.blobs import get_blob
from tests.cluster.conftest import measured
from tests.support import control_flow_models as models
from tests.support.control_flow_models import write_model

pytestmark = pytest.mark.full

QUIET = SilentProgress()
BODY = "main_1_body"
DRIVEN = 3
"""Largest number of kernels that drive a node: one for each variant."""


@pytest.fixture
def loop(store, tmp_path):
    options = RequestOptions(
        backends=("onnxruntime", "tvm"), measure_budget_s=25, refine_s=0, verify_s=0.1, tune_s=0
    )
    path = write_model(models.LOOP, tmp_path / "loop.onnx")
    return submit(store, path, environment="pool", options=options)


def test_jobs_measure_a_body_and_the_finish_only_its_loop(
    nodes, make_service, loop, store, jobs, notices
):
    service = make_service()
    environment = service.probe(loop).environment
    assert service.functions(loop) == ("main",)
    searched = service.search(loop, "main", QUIET)
    batches = [
        Batch.model_validate_json(get_blob(store, job.notes["collage.dev/batch"]))
        for job in jobs.find({"app.kubernetes.io/component": "measure"})
    ]
    assert {(batch.function, batch.caller) for batch in batches} == {("main", ""), (BODY, "main")}
    before = measured(store, environment)
    assert len(before) == searched.measured
    assert not [notice for notice in notices if "stays whole" in notice]
    with contextlib.suppress(UnprovenError):  # a busy machine may leave the proof open
        service.finish(loop, QUIET)
    after = measured(store, environment)
    assert set(after.values()) == {1}, "nothing was measured twice"
    assert 1 <= len(after.keys() - before.keys()) <= DRIVEN
