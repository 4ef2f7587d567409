"""The logs of a played node's pods, served to the API server as a kubelet does."""

import ssl
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from tests.servers.node import Node


class LogServer(ThreadingHTTPServer):
    """The HTTP server of a node for pods' logs."""

    daemon_threads = True

    def __init__(self, node: "Node") -> None:
        super().__init__(("127.0.0.1", 0), _LogHandler)
        self.node = node
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        folder = node.plane.folder
        context.load_cert_chain(folder / "server.crt", folder / "server.key")
        self.socket = context.wrap_socket(
            self.socket, server_side=True, do_handshake_on_connect=False
        )

    def handle_error(self, request, client_address) -> None:
        """A client that goes away is no news."""


class _LogHandler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        requested = urlsplit(self.path)
        parts = requested.path.strip("/").split("/")
        actual = parts[0] == "containerLogs" and len(parts) == 4
        text = self.server.node.log(*parts[1:]) if actual else ""  # type: ignore[attr-defined]
        tail = parse_qs(requested.query).get("tailLines")
        if tail:
            text = "".join(text.splitlines(keepends=True)[-int(tail[0]) :])
        data = text.encode()
        self.send_response(200 if actual else 404)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_) -> None:
        pass
