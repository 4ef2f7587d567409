"""The client of the API server as a pod opens it: its token, which a kubelet renews, and no proxy."""

import datetime
from types import SimpleNamespace

import pytest
from kubernetes.config import incluster_config

from collage.cluster.kubernetes.api import open_client
from collage.errors import ClusterError


@pytest.fixture
def token(monkeypatch, tmp_path):
    """The files of a pod's account; a token that was read is old at once."""
    token, authority = tmp_path / "token", tmp_path / "ca.crt"
    token.write_text("first")
    authority.write_text("certificate")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(authority))
    clock = SimpleNamespace(
        datetime=datetime.datetime, timedelta=lambda minutes: datetime.timedelta(0)
    )
    monkeypatch.setattr(incluster_config, "datetime", clock)
    monkeypatch.setattr("kubernetes.client.rest.RESTClientObject.__init__", lambda *_: None)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    return token


def sent_token(api):
    (setting,) = api.configuration.auth_settings().values()
    return setting["value"]


def test_a_renewed_token_is_sent(token):
    """Version 36.0.0 of the client sends none at all."""
    api = open_client()
    assert sent_token(api) == "bearer first"
    token.write_text("second")
    assert sent_token(api) == "bearer second"


def test_the_api_server_is_asked_without_a_proxy(token, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example.com:3128")
    api = open_client()
    assert sent_token(api)
    assert api.configuration.proxy is None


def test_without_a_cluster_the_error_says_how_to_name_one(monkeypatch, tmp_path):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr(
        "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none")
    )
    with pytest.raises(ClusterError, match="set KUBECONFIG"):
        open_client()
