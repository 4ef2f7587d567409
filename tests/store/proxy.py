"""A server between boto3 and S3 that does to requests what networks and services do.

A fault names the requests that it befalls (method, part of the path with query, whether the condition
header is there) and how often; all others pass. What reached the server is recorded, so that a test can
tell "never arrived" from "arrived, and the answer was lost".
"""

import http.client
import socket
import threading
import time
from dataclasses import dataclass
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

FOREVER = 10**9


@dataclass
class Fault:
    """What happens to the next `times` matching requests.

    Kinds: `status` (answer `code` without asking the server), `conditional` (the same, for requests with a
    condition), `timeout` (no answer, nothing done), `lost` (done, no answer), `reset` (the connection
    breaks at once), `slow` (the body trickles), `truncate` (half of the body, then the end), `flip` (one bit
    of the body is wrong), `garble` (one bit of the request is), `unconditional` (written in spite of any
    condition; `If-Match` and `If-None-Match`: in spite of this one), `bare` (a quoted ETag does not match).
    """

    kind: str
    method: str = "GET"
    path: str = ""
    times: int = 1
    status: int = 0
    code: str = ""
    hit: int = 0

    def takes(self, method: str, path: str) -> bool:
        return self.hit < self.times and method in self.method.split("|") and self.path in path


class Proxy:
    """Passes requests on to `upstream`, but for the faults."""

    def __init__(self, upstream: str, hang_s: float = 30.0, client: Any = None) -> None:
        self.client = client
        self.upstream = urlsplit(upstream).netloc
        self.faults: list[Fault] = []
        self.passed: list[tuple[str, str, int]] = []
        self.hang_s = hang_s
        self.lock = threading.Lock()
        self.closing = threading.Event()
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def fault_for(self, method: str, path: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.takes(method, path):
                    fault.hit += 1
                    return fault
        return None

    def count(self, method: str, part: str, status: int | None = None) -> int:
        with self.lock:
            return sum(
                request[0] == method and part in request[1] and status in (None, request[2])
                for request in self.passed
            )


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: Proxy

    def log_message(self, *_: object) -> None:
        pass

    def _serve(self) -> None:
        try:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            fault = self.owner.fault_for(self.command, self.path)
            self._act(fault, body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve

    def _act(self, fault: Fault | None, body: bytes) -> None:
        kind = fault.kind if fault else ""
        if kind == "timeout":
            self._hang()
        elif kind == "reset":
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
        elif fault and (kind == "status" or (kind == "conditional" and condition_of(self.headers))):
            self._refuse(fault.status, fault.code)
        elif kind == "bare" and (self.headers.get("If-Match") or "").startswith('"'):
            self._refuse(412, "PreconditionFailed")
        else:
            if kind == "garble" and body:
                body = body[:-1] + bytes([body[-1] ^ 1])
            status, headers, answer = self._forward(body)
            if kind in ("unconditional", condition_of(self.headers)) and status == 412:
                bucket, _, key = self.path.lstrip("/").partition("?")[0].partition("/")
                created = self.owner.client.put_object(Bucket=bucket, Key=key, Body=body)
                status, headers, answer = 200, [("ETag", created["ETag"])], b""
            if kind == "lost":
                self._hang()
            else:
                self._answer(status, headers, answer, kind)

    def _hang(self) -> None:
        self.owner.closing.wait(self.owner.hang_s)
        self.close_connection = True

    def _refuse(self, status: int, code: str) -> None:
        text = (
            f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>injected</Message>"
            f"<Resource>{urlsplit(self.path).path}</Resource><RequestId>1</RequestId></Error>"
        ).encode()
        self._answer(status, [("Content-Type", "application/xml")], text, "")

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(self.owner.upstream, timeout=60)
        try:
            connection.putrequest(
                self.command, self.path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in self.headers.items():
                if name.lower() not in ("expect", "connection"):
                    connection.putheader(name, value)
            connection.endheaders(body or None)
            answer = connection.getresponse()
            data = answer.read()
            with self.owner.lock:
                self.owner.passed.append((self.command, self.path, answer.status))
            drop = ("transfer-encoding", "connection")
            headers = [header for header in answer.getheaders() if header[0].lower() not in drop]
            return answer.status, headers, data
        finally:
            connection.close()

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes, kind: str) -> None:
        self.send_response_only(status)
        before = {name.lower() for name, _ in headers}
        for name, value in headers:
            self.send_header(name, value)
        if "content-length" not in before:
            self.send_header("Content-Length", str(len(body)))
        if "date" not in before:
            self.send_header("Date", self.date_time_string())
        self.end_headers()
        if self.command == "HEAD":
            return
        if kind == "flip" and body:
            body = body[:-1] + bytes([body[-1] ^ 1])
        if kind == "truncate":
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            self.close_connection = True
        elif kind == "slow":
            step = max(1, len(body) // 8)
            for start in range(0, len(body), step):
                self.wfile.write(body[start : start + step])
                self.wfile.flush()
                time.sleep(0.1)
        else:
            self.wfile.write(body)


def condition_of(headers: Message) -> str | None:
    """The condition that a request has."""
    return next((name for name in ("If-Match", "If-None-Match") if name in headers), None)
