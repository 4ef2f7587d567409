"""The receiver as a process: what it believes, what it counts, and what a kill -9 costs."""

import itertools
import json
import random
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from containers.webhook_signature import sign
from tests.servers.receiver import SECRET, PrefectRecorder, Receiver
from tests.support.waiting import wait_for

_names = itertools.count()


@pytest.fixture(scope="module")
def prefect():
    created = PrefectRecorder()
    yield created
    created.close()


@pytest.fixture(scope="module")
def receiver(prefect, tmp_path_factory):
    created = Receiver(tmp_path_factory.mktemp("receiver"), prefect.url)
    yield created
    created.kill()


@pytest.fixture
def own_prefect():
    """A Prefect of the test's own that is down."""
    created = PrefectRecorder()
    created.down = True
    yield created
    created.close()


@pytest.fixture
def receive(own_prefect, tmp_path):
    """Start a receiver of the test's own before the Prefect that is down."""
    started = []

    def start(**settings):
        started.append(Receiver(tmp_path, own_prefect.url, **settings))
        return started[-1]

    yield start
    for process in started:
        process.kill()


@pytest.fixture
def model():
    return f"model-{next(_names)}"


def event(name, alias="candidate", kind=("model_version_alias", "created")):
    data = {"name": name, "version": "1", "alias": alias}
    return json.dumps({"entity": kind[0], "action": kind[1], "data": data}).encode()


def headers(body, secret=SECRET, age_s=0.0, identity=None):
    identity, stamp = identity or str(uuid.uuid4()), str(int(time.time() - age_s))
    signature = sign(b".".join((identity.encode(), stamp.encode(), body)), secret.encode())
    return {
        "content-type": "application/json", "x-mlflow-delivery-id": identity,
        "x-mlflow-timestamp": stamp, "x-mlflow-signature": signature.decode(),
    }  # fmt: skip


def post(receiver, body, send=None):
    return httpx.post(
        f"{receiver.url}/webhooks/mlflow", content=body, headers=send or headers(body)
    )


def test_the_alias_starts_one_run(receiver, prefect, model):
    assert post(receiver, event(model)).status_code == 202
    wait_for(
        lambda: [
            started_run
            for started_run in prefect.runs
            if started_run["parameters"]["model"] == model
        ]
    )
    (run,) = [
        started_run for started_run in prefect.runs if started_run["parameters"]["model"] == model
    ]
    assert run["parameters"] == {"model": model, "version": "1"}
    assert run["idempotency_key"].startswith("webhook:")


def test_a_receiver_of_one_device_asks_for_runs_of_it(
    receive, own_prefect, receiver, prefect, model
):
    own_prefect.down = False
    assert post(receive(COLLAGE_RECEIVER__DEVICE="cuda"), event(model)).status_code == 202
    wait_for(lambda: own_prefect.runs)
    (run,) = own_prefect.runs
    assert run["parameters"] == {"model": model, "version": "1", "device": "cuda"}
    assert post(receiver, event(model)).status_code == 202
    wait_for(
        lambda: [
            started_run
            for started_run in prefect.runs
            if started_run["parameters"]["model"] == model
        ]
    )
    (second,) = [
        started_run for started_run in prefect.runs if started_run["parameters"]["model"] == model
    ]
    assert second["idempotency_key"] != run["idempotency_key"], "a run for all is another one"


def test_a_version_that_waits_for_its_run_gets_no_second_one(receive, own_prefect, model):
    receiver = receive()
    for _ in range(2):
        assert post(receiver, event(model)).status_code == 202
    assert "collage_receiver_waiting 1.0" in metrics(receiver)
    own_prefect.down = False
    wait_for(lambda: "collage_receiver_waiting 0.0" in metrics(receiver))
    assert len({run["idempotency_key"] for run in own_prefect.runs}) == 1


def test_an_alias_that_moves_away_and_back_starts_another_run(receiver, prefect, model):
    """The first run may have failed: with its key, Prefect would answer with that run."""

    def keys():
        return {
            run["idempotency_key"] for run in prefect.runs if run["parameters"]["model"] == model
        }

    for count in (1, 2):
        assert post(receiver, event(model)).status_code == 202
        wait_for(lambda count=count: len(keys()) == count)


def test_a_lost_journal_starts_no_run_again(receiver, prefect, model):
    """A replay of a delivery that the journal has forgotten has the key of its run."""
    body = event(model)
    send = headers(body)
    for _ in range(2):
        before = len(prefect.runs)
        assert post(receiver, body, send).status_code == 202
        wait_for(lambda before=before: len(prefect.runs) > before)
        wait_for(lambda: "collage_receiver_waiting 0.0" in metrics(receiver))
        receiver.kill()
        for file in receiver.folder.glob("journal.db*"):
            file.unlink()
        receiver.start()
    runs = [run for run in prefect.runs if run["parameters"]["model"] == model]
    assert len({run["idempotency_key"] for run in runs}) == 1


def test_releases_have_deployments_and_keys_of_their_own(receive, own_prefect, model, tmp_path):
    own_prefect.down = False
    body = event(model)
    send = headers(body)
    for release in ("a", "b"):
        receiver = receive(
            COLLAGE_RELEASE=release, COLLAGE_RECEIVER__JOURNAL=str(tmp_path / f"{release}.db")
        )
        assert post(receiver, body, send).status_code == 202
        wait_for(lambda receiver=receiver: "collage_receiver_waiting 0.0" in metrics(receiver))
    assert len({run["idempotency_key"] for run in own_prefect.runs}) == 2
    names = [path for path in own_prefect.paths if path.startswith("/api/deployments/name/")]
    assert names == [f"/api/deployments/name/optimize-model/optimize%40{name}" for name in "ab"]


@pytest.mark.parametrize(
    ("body", "result"),
    [
        (event("m", alias="optimized"), "ignored"),
        (event("m", kind=("model_version_tag", "set")), "ignored"),
        (event("m", kind=("model_version_alias", "deleted")), "ignored"),
        (event("m", kind=("model_version", "created")), "ignored"),
    ],
    ids=["own alias", "own tag", "alias deleted", "version created"],
)
def test_own_writes_and_other_events_start_nothing(receiver, prefect, body, result):
    before, runs = receiver.count("webhooks", result), len(prefect.runs)
    assert post(receiver, body).status_code == 200
    assert receiver.count("webhooks", result) == before + 1
    time.sleep(0.2)
    assert len(prefect.runs) == runs


def test_strangers_see_nothing_but_the_webhook(receiver):
    """Probes and metrics are on a port that the network policy opens for the cluster alone."""
    for path in ("/metrics", "/healthz", "/readyz", "/"):
        assert httpx.get(receiver.url + path).status_code == 404
    for path in ("/metrics", "/healthz", "/readyz"):
        assert httpx.get(receiver.status_url + path).status_code == 200
    assert httpx.post(f"{receiver.status_url}/webhooks/mlflow").status_code == 404


def unsigned(send):
    return {name: value for name, value in send.items() if "signature" not in name}


BODY = event("never-started")
REJECTED = {
    "another secret": (401, "forged", BODY, lambda: headers(BODY, secret="x" * 20)),
    "unsigned": (401, "forged", BODY, lambda: unsigned(headers(BODY))),
    "other body": (401, "forged", BODY + b" ", lambda: headers(BODY)),
    "other id": (401, "forged", BODY, lambda: headers(BODY) | {"x-mlflow-delivery-id": "other"}),
    "other time": (401, "forged", BODY, lambda: headers(BODY) | {"x-mlflow-timestamp": "1"}),
    "no time": (401, "forged", BODY, lambda: headers(BODY) | {"x-mlflow-timestamp": "now"}),
    "long id": (401, "forged", BODY, lambda: headers(BODY, identity="x" * 200)),
    "old": (401, "old", BODY, lambda: headers(BODY, age_s=302)),
    "of the future": (401, "old", BODY, lambda: headers(BODY, age_s=-310)),
    "too large": (413, "too_large", b"x" * 70_000, lambda: headers(b"x" * 70_000)),
    "no JSON type": (415, "bad_type", BODY, lambda: headers(BODY) | {"content-type": "text/plain"}),
    "no JSON": (400, "malformed", b"{", lambda: headers(b"{")),
    "no object": (400, "malformed", b"[]", lambda: headers(b"[]")),
}


@pytest.mark.parametrize("case", REJECTED)
def test_what_is_not_believed_is_counted(receiver, prefect, case):
    status, result, body, send = REJECTED[case]
    before = receiver.count("webhooks", result)
    assert post(receiver, body, send()).status_code == status
    assert receiver.count("webhooks", result) == before + 1
    assert all(run["parameters"]["model"] != "never-started" for run in prefect.runs)


def test_a_delivery_just_inside_the_window(receiver, model):
    body = event(model)
    assert post(receiver, body, headers(body, age_s=295)).status_code == 202


def test_a_replay_is_refused_also_after_a_kill(receiver, model):
    body = event(model)
    send = headers(body)
    assert post(receiver, body, send).status_code == 202
    assert post(receiver, body, send).status_code == 409
    assert receiver.count("webhooks", "replayed") >= 1
    receiver.kill()
    receiver.start()
    assert post(receiver, body, send).status_code == 409
    assert receiver.count("webhooks", "replayed") == 1


def test_no_secret_in_the_log(receiver):
    log = receiver.log.read_text()
    assert '"message": "webhook"' in log
    assert SECRET not in log
    assert "v1," not in log
    for line in log.splitlines():
        assert json.loads(line)["logger"]


@pytest.mark.parametrize("attempt", range(10))
def test_a_promised_run_starts_after_a_kill(receive, own_prefect, attempt):
    """Prefect is down, so the promise is pending at the moment of the kill."""
    receiver = receive()
    assert post(receiver, event("promised")).status_code == 202
    time.sleep(0.04 * attempt)
    receiver.kill()
    own_prefect.down = False
    receiver.start()
    wait_for(lambda: own_prefect.runs)
    wait_for(lambda: receiver.count("starts", "started") == 1)
    assert len({run["idempotency_key"] for run in own_prefect.runs}) == 1
    wait_for(lambda: "collage_receiver_waiting 0.0" in metrics(receiver))


def test_a_receiver_killed_at_any_moment_starts_promised_runs(receive, own_prefect, capsys):
    """One that was answered with 202 starts its run once; one that was not, is sent again by MLflow."""
    own_prefect.down = False
    receiver, chance = receive(), random.Random()
    promised, sent, lines = set(), 0, []

    def send(name):
        try:
            return name if post(receiver, event(name)).status_code == 202 else None
        except httpx.HTTPError:
            return None

    def keys(names):
        actual = [run for run in own_prefect.runs if run["parameters"]["model"] in names]
        return {
            (started_run["parameters"]["model"], started_run["idempotency_key"])
            for started_run in actual
        }

    for number in range(10):
        names = [f"storm-{number}-{n}" for n in range(12)]
        moment_s = chance.uniform(0.0, 0.25)
        with ThreadPoolExecutor(12) as pool:
            answers = [pool.submit(send, name) for name in names]
            time.sleep(moment_s)
            receiver.kill()
            accepted = {answer.result() for answer in answers} - {None}
        before = len(keys(accepted))
        receiver.start()
        promised.update(accepted)
        sent += len(names)
        wait_for(lambda: len(keys(promised)) >= len(promised))
        lines.append(f"  {moment_s * 1e3:4.0f} ms: {len(accepted):2} accepted, {before:2} begun")
    assert promised
    assert len(promised) < sent, "it was never killed before an answer"
    wait_for(lambda: "collage_receiver_waiting 0.0" in metrics(receiver))
    actual = keys({started_run["parameters"]["model"] for started_run in own_prefect.runs})
    assert len(actual) == len({name for name, _ in actual}), "one key for each version"
    with capsys.disabled():
        print("\n" + "\n".join(lines))


def metrics(receiver):
    return httpx.get(f"{receiver.status_url}/metrics").text


def test_prefect_down_for_long_gives_up_and_counts(receive):
    receiver = receive(COLLAGE_RECEIVER__ATTEMPTS="2")
    assert post(receiver, event("lost")).status_code == 202
    wait_for(lambda: receiver.count("starts", "given_up") == 1)
    assert receiver.count("starts", "retried") == 1
    assert "reconcile" in receiver.log.read_text()
    assert receiver.stop() in (0, -15)


def test_too_many_are_sent_away_and_may_come_again(receive, own_prefect):
    receiver = receive(COLLAGE_RECEIVER__MAX_STARTS="1")
    assert post(receiver, event("one")).status_code == 202
    body = event("two")
    send = headers(body)
    assert post(receiver, body, send).status_code == 503
    own_prefect.down = False
    wait_for(lambda: receiver.count("starts", "started") == 1)
    assert post(receiver, body, send).status_code == 202


def test_sigterm_ends_the_receiver_and_secrets_rotate(receive, own_prefect):
    own_prefect.down = False
    old = "the-secret-before-this"
    receiver = receive(COLLAGE_RECEIVER__PREVIOUS_SECRET=old)
    body = event("rotated")
    assert post(receiver, body, headers(body, secret=old)).status_code == 202
    assert post(receiver, body).status_code == 202
    begin = time.monotonic()
    assert receiver.stop() in (0, -15)
    assert time.monotonic() - begin < 10
