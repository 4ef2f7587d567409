"""Content encodings of HTTP: compressed bodies of requests, and compressed answers.

A few kilobytes may inflate to gigabytes, so a body is inflated in steps, against the limit of bodies as they
are without an encoding; the compressed bytes are not kept.
"""

import gzip
import zlib

from collage.errors import InputError

GZIP = "gzip"
ENCODINGS = (GZIP, "deflate")
MAX_MEMBERS = 16
"""Largest number of parts of a gzip file; more are of no client's."""

_STEP = 64 << 10
_GZIP_WINDOW = 16 + zlib.MAX_WBITS
_FRAME_BYTES = 2
_FAST = 1


class TooLarge(Exception):
    """The inflated body is larger than its limit."""


class UnknownEncoding(Exception):
    """The body has an encoding that this server does not know."""


def body_encoding(header: str | None) -> str:
    """Return the encoding of a request's body, or "" without one. Raises UnknownEncoding."""
    encoding = (header or "identity").strip().lower().removeprefix("x-")
    if encoding == "identity":
        return ""
    if encoding not in ENCODINGS:
        raise UnknownEncoding(f"the body's encoding is none of {', '.join(ENCODINGS)}")
    return encoding


class Inflater:
    """Inflates one body; `content` is what came so far, at most `limit` bytes."""

    def __init__(self, encoding: str, limit: int) -> None:
        self.content = bytearray()
        self._encoding, self._limit = encoding, limit
        self._start = b""
        self._decoder = zlib.decompressobj(_GZIP_WINDOW) if encoding == GZIP else None
        self._members = 1

    def feed(self, chunk: bytes) -> None:
        """Inflate the next bytes of the body. Raises InputError, and TooLarge."""
        if self._decoder is None:
            self._start += chunk
            if len(self._start) < _FRAME_BYTES:
                return
            chunk = self._start
            self._decoder = zlib.decompressobj(_window_of(chunk))
        try:
            self._inflate(self._decoder, chunk)
        except zlib.error:
            raise InputError(f"the body is not valid {self._encoding}") from None

    def finish(self) -> bytearray:
        """Return the whole body. Raises InputError if it is cut off."""
        if self._decoder is None or not self._decoder.eof:
            raise InputError(f"the body ends within its {self._encoding}")
        return self.content

    def _inflate(self, decoder: "zlib._Decompress", data: bytes) -> None:
        while True:
            if decoder.eof and data:
                decoder = self._begin_member()
            inflated = decoder.decompress(data, _STEP)
            self.content += inflated
            if len(self.content) > self._limit:
                raise TooLarge
            data = decoder.unused_data if decoder.eof else decoder.unconsumed_tail
            if not data and (decoder.eof or len(inflated) < _STEP):
                return

    def _begin_member(self) -> "zlib._Decompress":
        self._members += 1
        if self._encoding != GZIP or self._members > MAX_MEMBERS:
            raise InputError(f"bytes follow the end of the body's {self._encoding}")
        self._decoder = zlib.decompressobj(_GZIP_WINDOW)
        return self._decoder


def _window_of(start: bytes) -> int:
    """Return zlib's window of deflate with its frame, or without: some clients leave it out."""
    has_frame = start[0] & 15 == zlib.DEFLATED and int.from_bytes(start[:2], "big") % 31 == 0
    return zlib.MAX_WBITS if has_frame else -zlib.MAX_WBITS


def accepts_gzip(header: str | None) -> bool:
    """Tell whether a client takes answers in gzip, by its `Accept-Encoding`."""
    weights: dict[str, bool] = {}
    for item in (header or "").lower().split(","):
        name, _, weight = item.partition(";")
        weights[name.strip()] = weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return weights.get(GZIP, weights.get("*", False))


def compress(body: bytes) -> bytes:
    """Compress an answer, fast."""
    return gzip.compress(body, _FAST, mtime=0)
