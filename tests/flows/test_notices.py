"""What Jobs wait for stands in the log of the run, where people look."""

import logging

import pytest
from prefect.exceptions import MissingContextError

from collage.cluster.controller.settings import ClusterSettings
from flows import environments
from flows.settings import FlowSettings

WAITS = "2 pods of the Job j wait for a node: 0/3 nodes are available"


@pytest.fixture
def service(tmp_path):
    """The service of flows, as a worker opens it."""
    cluster = ClusterSettings(measure_image="m", controller_image="c")
    settings = FlowSettings(store=str(tmp_path / "store"), cluster=cluster, cache_dir=tmp_path)
    return environments._cluster_service(settings)


def test_a_notice_of_the_cluster_is_a_warning_of_the_run(service, monkeypatch, caplog):
    run = logging.LoggerAdapter(logging.getLogger("run"), {"flow_run_name": "brave-crab"})
    monkeypatch.setattr("flows.progress.get_run_logger", lambda: run)
    service._notice(WAITS)
    assert [record[1:] for record in caplog.record_tuples] == [(logging.WARNING, WAITS)]
    assert caplog.records[0].flow_run_name == "brave-crab"


def test_outside_of_a_run_a_notice_is_logged_too(service, monkeypatch, caplog):
    def no_run():
        raise MissingContextError

    monkeypatch.setattr("flows.progress.get_run_logger", no_run)
    monkeypatch.setattr("flows.progress.logger", logging.getLogger("process"))
    service._notice(WAITS)
    assert caplog.record_tuples == [("process", logging.WARNING, WAITS)]
