"""An S3 service in memory that behaves as a `Dialect` says.

It checks no signature, only the region that a signature names. `refusal` answers every request with an error.
"""

import hashlib
import threading
from base64 import b64encode
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from tests.store.dialects import Dialect

BUCKET = "models"
PAGE = 3
"""Objects of a page of a listing."""


@dataclass(frozen=True)
class Refusal(Exception):
    """An error answer; `headers` of it, beside those of every answer."""

    status: int
    code: str
    text: str = "refused"
    headers: tuple[tuple[str, str], ...] = ()


@dataclass
class Upload:
    key: str
    parts: dict[int, bytes] = field(default_factory=dict)


class DialectServer:
    """The service on a port of this machine."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.objects: dict[str, bytes] = {}
        self.uploads: dict[str, Upload] = {}
        self.requests: list[tuple[str, str]] = []
        self.refusal: Refusal | None = None
        self.retained = dialect.retained
        self.lock = threading.RLock()
        handler = type("Handler", (_Handler,), {"service": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )
        self._thread.start()

    def address(self, prefix: str = "team/collage", **settings: object) -> str:
        values = {
            "endpoint": self.url, "addressing": "path", "retries": "standard", "attempts": 2,
            "part_bytes": 5 << 20, **dict(parse_qsl(self.dialect.settings)), **settings,
        }  # fmt: skip
        return f"s3://{BUCKET}/{prefix}?" + "&".join(f"{k}={v}" for k, v in values.items())

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    service: DialectServer

    def log_message(self, *_: object) -> None:
        pass

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        self.query = dict(parse_qsl(parts.query, keep_blank_values=True))
        _, bucket, *names = unquote(parts.path).split("/", 2)
        self.key = names[0] if names else ""
        with self.service.lock:
            self.service.requests.append((self.command, self.path))
            try:
                self._check(bucket)
                answer = getattr(self, f"_{self.command.lower()}")(body)
            except Refusal as refusal:
                answer = self._refused(refusal)
        self._answer(*answer)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve

    def _check(self, bucket):
        service, dialect = self.service, self.service.dialect
        if service.refusal:
            raise service.refusal
        scope = self.headers.get("Authorization", "").partition("Credential=")[2].split("/")
        if dialect.region and scope[2] != dialect.region:
            headers = (("x-amz-bucket-region", dialect.region),)
            raise Refusal(400, "AuthorizationHeaderMalformed", "the region is wrong", headers)
        if bucket != BUCKET:
            raise Refusal(404, "NoSuchBucket")
        names = [name.lower() for name in self.headers]
        extra = [
            name for name in names if name.startswith(("x-amz-checksum", "x-amz-sdk-checksum"))
        ]
        if extra and dialect.checksum not in ("verified", "ignored"):
            status = 403 if dialect.checksum == "SignatureDoesNotMatch" else 400
            raise Refusal(status, dialect.checksum, f"Unsupported header '{extra[0]}'")

    def _get(self, _body):
        if self.key:
            return 200, self._content(), self._head_of(self.key)
        if "uploads" in self.query:
            return self._listed_uploads()
        return self._listed()

    def _head(self, _body):
        return 200, self._content(), self._head_of(self.key)

    def _put(self, body):
        if "x-amz-copy-source" in self.headers:
            return self._copied()
        self._verify(body)
        if "uploadId" in self.query:
            self._upload().parts[int(self.query["partNumber"])] = body
            return 200, b"", {"ETag": _etag(body)}
        self._keep_conditions(self.service.dialect.create)
        self._write(body)
        return 200, b"", {"ETag": self._seen_etag(body)}

    def _post(self, body):
        service = self.service
        if "uploads" in self.query:
            identity = f"upload-{len(service.requests)}"
            service.uploads[identity] = Upload(self.key)
            return self._xml("InitiateMultipartUploadResult", f"<UploadId>{identity}</UploadId>")
        upload = self._upload()
        self._keep_conditions(service.dialect.complete)
        numbers = [
            int(e.text or 0)
            for e in ElementTree.fromstring(body).iter()
            if e.tag.endswith("PartNumber")
        ]
        self._write(b"".join(upload.parts[number] for number in numbers))
        del service.uploads[self.query["uploadId"]]
        return self._xml("CompleteMultipartUploadResult", f"<Key>{escape(self.key)}</Key>")

    def _delete(self, _body):
        if "uploadId" in self.query:
            self._upload()
            del self.service.uploads[self.query["uploadId"]]
            return 204, b"", {}
        self._keep_retention()
        if self.key not in self.service.objects and self.service.dialect.absent_delete != 204:
            raise Refusal(self.service.dialect.absent_delete, "NoSuchKey")
        self.service.objects.pop(self.key, None)
        return 204, b"", {}

    def _content(self):
        if self.key not in self.service.objects:
            raise Refusal(404, "NoSuchKey")
        return self.service.objects[self.key]

    def _head_of(self, key):
        date = formatdate(usegmt=True)
        return {"ETag": self._seen_etag(self.service.objects[key]), "Last-Modified": date}

    def _seen_etag(self, data):
        return f"W/{_etag(data)}" if self.service.dialect.weak else _etag(data)

    def _upload(self):
        if self.query["uploadId"] not in self.service.uploads:
            raise Refusal(404, "NoSuchUpload")
        return self.service.uploads[self.query["uploadId"]]

    def _verify(self, body):
        digest, md5 = self.headers.get("x-amz-checksum-sha256"), self.headers.get("Content-MD5")
        if self.service.dialect.lock and digest is None and md5 is None:
            raise Refusal(
                400, "InvalidRequest", "Content-MD5 OR x-amz-checksum- HTTP header is required for "
                "Put Object requests with Object Lock parameters",
            )  # fmt: skip
        if md5 not in (None, b64encode(hashlib.md5(body).digest()).decode()):
            raise Refusal(400, "BadDigest")
        expected = b64encode(hashlib.sha256(body).digest()).decode()
        if self.service.dialect.checksum == "verified" and digest not in (None, expected):
            raise Refusal(400, "BadDigest")

    def _keep_conditions(self, create):
        swap = self.service.dialect.swap
        stored = self.service.objects.get(self.key)
        if "If-None-Match" in self.headers:
            self._require(create, stored is None)
        if (etag := self.headers.get("If-Match")) is not None:
            current = None if stored is None else _etag(stored)
            if swap == "bare":
                current = current and current.strip('"')
            elif current == f'"{etag}"':
                etag = current  # most services take the bare form too
            self._require(swap, etag == current)

    @staticmethod
    def _require(behaviour, holds):
        if behaviour == "501":
            raise Refusal(501, "NotImplemented")
        if behaviour != "ignored" and not holds:
            raise Refusal(412, "PreconditionFailed")

    def _keep_retention(self):
        if self.key in self.service.objects and self.key.startswith(
            self.service.retained or ("\0",)
        ):
            raise Refusal(
                403, "AccessDenied", "Access Denied because object protected by object lock."
            )

    def _write(self, body):
        self._keep_retention()
        self.service.objects[self.key] = body

    def _copied(self):
        source = unquote(self.headers["x-amz-copy-source"]).partition("/")[2]
        if source not in self.service.objects:
            raise Refusal(404, "NoSuchKey")
        data, now = self.service.objects[source], "2026-01-01T00:00:00.000Z"
        times = f"<LastModified>{now}</LastModified><ETag>{_etag(data)}</ETag>"
        if "uploadId" not in self.query:
            self._write(data)
            return self._xml("CopyObjectResult", times)
        if not self.service.dialect.part_copy:
            raise Refusal(501, "NotImplemented")
        start, end = self.headers["x-amz-copy-source-range"].removeprefix("bytes=").split("-")
        part = data[int(start) : int(end) + 1]
        self._upload().parts[int(self.query["partNumber"])] = part
        return self._xml("CopyPartResult", times)

    def _listed(self):
        dialect, query = self.service.dialect, self.query
        after = query.get("continuation-token") or query.get("marker", "")
        if dialect.tokens:
            after = after or query.get("start-after", "")
        keys = sorted(
            key for key in self.service.objects if key.startswith(query.get("prefix", ""))
        )
        rest = [key for key in keys if key > after]
        page = rest[:PAGE]
        entries = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>{_etag(self.service.objects[key])}</ETag><Size>{len(self.service.objects[key])}</Size>"
            "</Contents>"
            for key in page
        )
        is_cut = len(rest) > PAGE
        token = (
            f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if is_cut else ""
        )
        cut = f"<IsTruncated>{str(is_cut).lower()}</IsTruncated>"
        return self._xml("ListBucketResult", cut + (token if dialect.tokens else "") + entries)

    def _listed_uploads(self):
        if not self.service.dialect.uploads:
            raise Refusal(501, "NotImplemented")
        entries = "".join(
            f"<Upload><Key>{escape(upload.key)}</Key><UploadId>{identity}</UploadId>"
            "<Initiated>2026-01-01T00:00:00.000Z</Initiated></Upload>"
            for identity, upload in self.service.uploads.items()
        )
        return self._xml("ListMultipartUploadsResult", f"<IsTruncated>false</IsTruncated>{entries}")

    def _refused(self, refusal):
        _, body, headers = self._xml(
            "Error", f"<Code>{refusal.code}</Code><Message>{escape(refusal.text)}</Message>"
        )
        return refusal.status, body, headers | dict(refusal.headers)

    @staticmethod
    def _xml(name, content):
        text = f"<?xml version='1.0' encoding='UTF-8'?><{name}>{content}</{name}>"
        return 200, text.encode(), {"Content-Type": "application/xml"}

    def _answer(self, status, body, headers):
        if status == 200 and "Range" in self.headers and "ETag" in headers:
            status, body = 206, body[:1]
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD" and status != 204:
            self.wfile.write(body)


def _etag(data):
    return f'"{hashlib.md5(data).hexdigest()}"'
