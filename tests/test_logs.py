"""Log lines: JSON with context, and no secret in any part of them."""

import asyncio
import io
import json
import logging
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
from pydantic import BaseModel, SecretStr

from collage import logs

SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCY"


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    root = logging.getLogger()
    before, level, hook = list(root.handlers), root.level, sys.excepthook
    monkeypatch.setattr(logs, "_secrets", set())
    yield
    root.handlers[:] = before
    root.setLevel(level)
    sys.excepthook = hook
    logging.captureWarnings(False)


@pytest.fixture
def said(monkeypatch):
    """What is written to standard error (pytest changes that of `sys` between set-up and test)."""
    stream = io.StringIO()
    monkeypatch.setattr(logs, "sys", SimpleNamespace(stderr=stream))
    return stream


@pytest.fixture
def lines(said):
    logs.configure_logs("test", json=True)
    return lambda: [json.loads(line) for line in said.getvalue().splitlines()]


log = logging.getLogger("collage.some.module")


def test_a_line_is_one_object_with_its_context(lines):
    with logs.log_context(run="r1", function="main"), logs.log_context(backend="tvm"):
        log.info("measured %d", 7, extra={"seconds": 0.5, "skipped": None})
    log.warning("two\nlines")
    first, second = lines()
    assert first.pop("time").endswith("Z")
    assert first == {
        "level": "info", "component": "test", "logger": "collage.some.module", "run": "r1",
        "message": "measured 7", "function": "main", "backend": "tvm", "seconds": 0.5, "skipped": None,
    }  # fmt: skip
    assert second["message"] == "two\nlines"
    assert "run" not in second


def test_contexts_of_tasks_and_threads_do_not_mix(lines):
    async def one(name):
        with logs.log_context(run=name):
            await asyncio.sleep(0.01)
            log.info(name)

    async def both():
        await asyncio.gather(one("a"), one("b"))

    with logs.log_context(function="main"):
        asyncio.run(both())
        thread = threading.Thread(target=log.info, args=("thread",))
        thread.start()
        thread.join()
    by_message = {line["message"]: line for line in lines()}
    assert [by_message[name]["run"] for name in "ab"] == ["a", "b"]
    assert by_message["a"]["function"] == "main"
    assert "function" not in by_message["thread"]


LEAKS = [
    "AWS_SECRET_ACCESS_KEY=hunter22 in the environment",
    "http://admin:hunter22@minio:9000/models",
    "postgresql+asyncpg://prefect:hunter22@db/prefect",
    "https://ghp_hunter22@github.com/x",
    "Authorization: Bearer hunter22.hunter22",
    "{'authorization': 'Basic hunter22=='}",
    "Authorization: AWS4-HMAC-SHA256 Credential=hunter22/x, SignedHeaders=host, Signature=hunter22",
    "token=hunter22&x=1",
    "https://s3/x?X-Amz-Credential=hunter22&X-Amz-Signature=hunter22&part=1",
    "AKIAHUNTER22HUNTER22 is the key id",
]


@pytest.mark.parametrize("text", LEAKS)
def test_what_looks_like_a_secret_is_removed(text):
    redacted = logs.redact(text)
    assert "hunter22" not in redacted.lower()
    assert logs.HIDDEN in redacted


@pytest.mark.parametrize(
    "text",
    [
        "s3://models/collage/blobs/ab/abcd cannot be written",
        "the alias 'ocr/production' was moved by a@b at http://minio:9000/x",
        "measured 300 candidates with 7 tokens a second",
    ],
)
def test_ordinary_text_stays(text):
    assert logs.redact(text) == text


def test_known_values_are_removed_from_every_part(monkeypatch, said):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "admin:longpassword")
    logs.configure_logs("test", json=True)
    logs.hide_secret(SecretStr("registry-pass"))
    logs.hide_secret(None)
    logs.hide_secret("ab")
    try:
        raise ValueError(f"bad key {SECRET}")
    except ValueError:
        with logs.log_context(run=f"run {SECRET}"):
            log.exception("%s or %s", SECRET, "registry-pass", extra={"url": f"x?k={SECRET}"})
    log.info("quoted %s %s", SECRET.replace("/", "%2F").replace("+", "%2B"), "admin:longpassword")
    said = said.getvalue()
    for secret in (SECRET, "%2FK7MDENG", "registry-pass", "longpassword"):
        assert secret not in said
    first = json.loads(said.splitlines()[0])
    assert "Traceback" in first["error"]
    assert first["run"] == "run ***"


def test_settings_with_secrets_are_safe_to_log(lines):
    class Settings(BaseModel):
        password: SecretStr

    log.info("settings %s", Settings(password=SecretStr(SECRET)))
    assert SECRET not in lines()[0]["message"]


def test_a_bad_log_call_loses_no_line():
    def line(message, *arguments, **extra):
        record = logging.makeLogRecord({"msg": message, "args": arguments, **extra})
        return json.loads(logs.JsonFormatter("test").format(record))

    first = line("%d files", "many")
    second = line("nan", seconds=float("nan"), thing={1, 2})
    assert first["message"].startswith("%d files (a log call")
    assert (second["seconds"], second["thing"]) == ("nan", "{1, 2}")


def test_configuring_twice_writes_each_line_once(said, lines):
    logs.configure_logs("again", json=False)
    with logs.log_context(run="r"):
        log.info("hello http://a:longpassword@b")
    said = said.getvalue()
    assert said.count("hello") == 1
    assert "again: hello http://***@b  [run=r]" in said


CRASH = """
from collage.logs import configure_logs
configure_logs("crashing")
raise RuntimeError("no access for http://user:longpassword@host")
"""


def test_a_crash_is_a_line_too():
    done = subprocess.run([sys.executable, "-c", CRASH], capture_output=True, text=True)
    assert done.returncode == 1
    line = json.loads(done.stderr)
    assert line["level"] == "critical"
    assert "http://***@host" in line["error"]
