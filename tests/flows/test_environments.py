"""The cluster's service of a process: one for equal settings, whatever these contain."""

import json

import pytest

pytest.importorskip("prefect")
pytest.importorskip("kubernetes")

from flows.environments import _cluster_service, open_compile_service
from flows.settings import flow_settings


@pytest.mark.parametrize("pod", [{}, {"labels": {"team": "a"}}], ids=["plain", "with additions"])
def test_equal_settings_have_one_service(settings, tmp_path, monkeypatch, pod):
    file = tmp_path / "environments.yaml"
    file.write_text("cpu: {threads: 1, nodeSelector: {pool: measure}}")
    values = {"MEASURE_IMAGE": "m", "CONTROLLER_IMAGE": "c", "POD": json.dumps(pod)}
    monkeypatch.setenv("COLLAGE_ENVIRONMENTS_FILE", str(file))
    for name, value in values.items():
        monkeypatch.setenv(f"COLLAGE_CLUSTER__{name}", value)
    service = _cluster_service(flow_settings())
    assert _cluster_service(flow_settings()) is service
    assert open_compile_service("cpu", flow_settings())._facts is service._facts
    monkeypatch.setenv("COLLAGE_CLUSTER__NAMESPACE", "other")
    assert _cluster_service(flow_settings()) is not service
