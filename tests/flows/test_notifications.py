"""Failed runs are told: a real Prefect server calls the webhook of a block."""

import json
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from collage.errors import OptionError
from tests.support.waiting import wait_for

pytestmark = pytest.mark.full

pytest.importorskip("prefect")

WAIT_S = 120.0
"""Of a busy machine; the server looks at events every second."""


@pytest.fixture
def webhook():
    """A webhook's address, and what it was told."""
    received = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            received.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/", received
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def block(server, webhook):
    """The name of a block that calls the webhook."""
    from prefect.blocks.notifications import CustomWebhookNotificationBlock

    name = f"ops-{uuid.uuid4().hex[:8]}"
    text = {"subject": "{{subject}}", "body": "{{body}}"}
    CustomWebhookNotificationBlock(name=name, url=webhook[0], json_data=text).save(name)
    return f"custom-webhook/{name}"


@pytest.fixture
def deployment(client):
    flow = client.create_flow_from_name("optimize-model")
    identity = client.create_deployment(flow, name=f"told-{uuid.uuid4().hex[:8]}")
    yield client.read_deployment(identity)
    client.delete_deployment(identity)


@pytest.fixture
def told(monkeypatch, settings, block, deployment):
    from flows.settings import flow_settings

    monkeypatch.setenv("COLLAGE_DEPLOYMENT", f"optimize-model/{deployment.name}")
    monkeypatch.setenv("COLLAGE_NOTIFY_BLOCK", block)
    return flow_settings()


def end(client, deployment, state):
    """Create a run of the deployment, and end it."""
    from prefect.states import Running

    run = client.create_flow_run_from_deployment(deployment.id, name=f"run-{uuid.uuid4().hex[:8]}")
    client.set_flow_run_state(run.id, Running(), force=True)
    client.set_flow_run_state(run.id, state, force=True)
    return run.name


def test_a_failed_run_is_told_and_a_rejected_one_is_not(told, client, deployment, webhook):
    from prefect.states import Failed

    from flows.names import REJECTED
    from flows.notifications import NAME, ensure_notification

    for _ in range(2):
        ensure_notification(client, told)
    assert len(client.read_automations_by_name(NAME)) == 1
    end(client, deployment, Failed(name=REJECTED, message="the model is unusable"))
    name = end(client, deployment, Failed(message="the store does not answer"))
    (message,) = wait_for(lambda: webhook[1], WAIT_S)
    assert message["subject"] == f"Collage: {name} Failed"
    assert "the store does not answer" in message["body"]
    ensure_notification(client, told.model_copy(update={"notify_block": ""}))
    assert not client.read_automations_by_name(NAME)


def test_a_block_that_is_not_there_is_named(told, client):
    from flows.notifications import ensure_notification

    absent = told.model_copy(update={"notify_block": "slack-webhook/absent"})
    with pytest.raises(OptionError, match="no block absent of type slack-webhook"):
        ensure_notification(client, absent)
