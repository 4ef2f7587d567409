"""Google's and Azure's storage in memory, as their documentation says that they answer.

Only what a store uses: objects with generations or ETags, conditional writes, listings, copies, parts. No
signature is checked. `refusal` answers every request with an error.
"""

import hashlib
import threading
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from tests.store.dialect_server import Refusal

ACCOUNT = "devaccount"
KEY = "c29tZSBzZWNyZXQgdGhhdCBub2JvZHkgdXNlcw=="
PAGE = 3


class CloudServer:
    """A service on a port of this machine; `kind` is gs or az."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.objects: dict[str, tuple[bytes, int]] = {}
        self.parts: dict[str, dict[str, bytes]] = {}
        self.requests: list[tuple[str, str]] = []
        self.refusal: Refusal | None = None
        self.generation = 0
        self.lock = threading.RLock()
        handler = type("Handler", (_HANDLERS[kind],), {"service": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )
        self._thread.start()

    def address(self, prefix: str = "team/collage", **settings: object) -> str:
        endpoint = self.url if self.kind == "gs" else f"{self.url}/{ACCOUNT}"
        values = {"endpoint": endpoint, "attempts": 2, "part_bytes": 5 << 20, **settings}
        if self.kind == "az":
            values["account"] = ACCOUNT
        return f"{self.kind}://models/{prefix}?" + "&".join(f"{k}={v}" for k, v in values.items())

    def write(self, key: str, data: bytes) -> int:
        self.generation += 1
        self.objects[key] = (data, self.generation)
        return self.generation

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    service: CloudServer
    skipped = 2
    """Parts of a path before the key."""

    def log_message(self, *_: object) -> None:
        pass

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        self.query = dict(parse_qsl(parts.query, keep_blank_values=True))
        names = unquote(parts.path).split("/", self.skipped)
        self.key = names[self.skipped] if len(names) > self.skipped else ""
        with self.service.lock:
            self.service.requests.append((self.command, self.path))
            try:
                if self.service.refusal:
                    raise self.service.refusal
                answer = getattr(self, f"_{self.command.lower()}")(body)
            except Refusal as refusal:
                answer = self._refused(refusal)
        self._answer(*answer)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve

    def _content(self):
        if self.key not in self.service.objects:
            raise Refusal(404, "NoSuchKey" if self.service.kind == "gs" else "BlobNotFound")
        return self.service.objects[self.key]

    def _page(self, marker):
        keys = sorted(
            key for key in self.service.objects if key.startswith(self.query.get("prefix", ""))
        )
        remaining = [key for key in keys if key > marker]
        return remaining[:PAGE], remaining[PAGE - 1] if len(remaining) > PAGE else ""

    def _refused(self, refusal):
        body = (
            f"<Error><Code>{refusal.code}</Code><Message>{escape(refusal.text)}</Message></Error>"
        )
        return refusal.status, body.encode(), {"Content-Type": "application/xml"}

    def _answer(self, status, body, headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, str(value))
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD" and status != 204:
            self.wfile.write(body)


class _Google(_Handler):
    """The XML protocol: `/bucket/key`, generations."""

    def _head_of(self, data, generation):
        return {
            "ETag": f'"{hashlib.md5(data).hexdigest()}"', "x-goog-generation": generation,
            "Last-Modified": formatdate(usegmt=True),
        }  # fmt: skip

    def _get(self, _body):
        if self.key:
            data, generation = self._content()
            return 200, data, self._head_of(data, generation)
        page, token = self._page(self.query.get("continuation-token", ""))
        entries = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(self.service.objects[key][0])}</Size>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>x</ETag></Contents>"
            for key in page
        )
        token = f"<NextContinuationToken>{escape(token)}</NextContinuationToken>" if token else ""
        return self._xml("ListBucketResult", f"{token}{entries}")

    _head = _get

    def _put(self, body):
        if "uploadId" in self.query:
            self.service.parts[self.query["uploadId"]][self.query["partNumber"]] = body
            return 200, b"", {"ETag": f'"{hashlib.md5(body).hexdigest()}"'}
        if source := self.headers.get("x-goog-copy-source"):
            path = unquote(source).strip("/").partition("/")[2]
            if path not in self.service.objects:
                raise Refusal(404, "NoSuchKey")
            body = self.service.objects[path][0]
            self.service.write(self.key, body)
            return self._xml("CopyObjectResult", "<ETag>x</ETag>")
        expected = self.headers.get("x-goog-if-generation-match")
        current = self.service.objects.get(self.key, (b"", 0))[1]
        if expected is not None and int(expected) != current:
            raise Refusal(412, "PreconditionFailed")
        return 200, b"", self._head_of(body, self.service.write(self.key, body))

    def _post(self, body):
        if "uploads" in self.query:
            identity = f"upload-{len(self.service.requests)}"
            self.service.parts[identity] = {}
            return self._xml("InitiateMultipartUploadResult", f"<UploadId>{identity}</UploadId>")
        parts = self.service.parts.pop(self.query["uploadId"])
        elements = ElementTree.fromstring(body).iter()
        numbers = [element.text for element in elements if element.tag.endswith("PartNumber")]
        data = b"".join(parts[number] for number in numbers)
        generation = self.service.write(self.key, data)
        status, content, headers = self._xml("CompleteMultipartUploadResult", "<ETag>x</ETag>")
        return status, content, headers | {"x-goog-generation": generation}

    def _delete(self, _body):
        self._content()
        del self.service.objects[self.key]
        return 204, b"", {}

    @staticmethod
    def _xml(name, content):
        text = f"<?xml version='1.0' encoding='UTF-8'?><{name}>{content}</{name}>"
        return 200, text.encode(), {"Content-Type": "application/xml"}


class _Azure(_Handler):
    """Blobs: `/account/container/key`, ETags, blocks, batches of deletions."""

    skipped = 3

    def _head_of(self, data, generation):
        return {
            "ETag": f'"0x{generation:X}"', "Last-Modified": formatdate(usegmt=True),
            "x-ms-blob-type": "BlockBlob",
        }  # fmt: skip

    def _get(self, _body):
        if self.key:
            data, generation = self._content()
            return 200, data, self._head_of(data, generation)
        page, marker = self._page(self.query.get("marker", ""))
        blobs = "".join(
            f"<Blob><Name>{escape(key)}</Name><Properties>"
            f"<Last-Modified>{formatdate(usegmt=True)}</Last-Modified><Etag>x</Etag>"
            f"<Content-Length>{len(self.service.objects[key][0])}</Content-Length>"
            "<Content-Type>application/octet-stream</Content-Type></Properties></Blob>"
            for key in page
        )
        text = (
            "<?xml version='1.0' encoding='utf-8'?><EnumerationResults>"
            f"<Blobs>{blobs}</Blobs><NextMarker>{escape(marker)}</NextMarker></EnumerationResults>"
        )
        return 200, text.encode(), {"Content-Type": "application/xml"}

    _head = _get

    def _put(self, body):
        if self.query.get("comp") == "block":
            self.service.parts.setdefault(self.key, {})[self.query["blockid"]] = body
            return 201, b"", {}
        self._keep_conditions()
        if self.query.get("comp") == "blocklist":
            blocks = self.service.parts.pop(self.key, {})
            root = ElementTree.fromstring(body)
            body = b"".join(blocks[element.text] for element in root)
        return 201, b"", self._head_of(body, self.service.write(self.key, body))

    def _keep_conditions(self):
        current = self.service.objects.get(self.key)
        if self.headers.get("If-None-Match") == "*" and current is not None:
            raise Refusal(409, "BlobAlreadyExists")
        if (etag := self.headers.get("If-Match")) is not None and (
            current is None or etag != f'"0x{current[1]:X}"'
        ):
            raise Refusal(412, "ConditionNotMet")

    def _post(self, body):
        boundary = self.headers["Content-Type"].partition("boundary=")[2]
        answers = []
        for part in body.decode().split(f"--{boundary}")[1:-1]:
            identity = part.partition("Content-ID:")[2].split()[0]
            path = urlsplit(part.partition("DELETE ")[2].split()[0]).path
            self.key = unquote(path).partition("/models/")[2]
            is_there = self.service.objects.pop(self.key, None) is not None
            status = "202 Accepted" if is_there else "404 The specified blob does not exist."
            answers.append(
                f"--{boundary}\r\nContent-Type: application/http\r\nContent-ID: {identity}\r\n\r\n"
                f"HTTP/1.1 {status}\r\nx-ms-request-id: 1\r\n\r\n"
            )
        text = "".join(answers) + f"--{boundary}--\r\n"
        return 202, text.encode(), {"Content-Type": f"multipart/mixed; boundary={boundary}"}


_HANDLERS = {"gs": _Google, "az": _Azure}
