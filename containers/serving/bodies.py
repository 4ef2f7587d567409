"""Bodies of requests: read within their limits of size and time, inflated if they are compressed."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from starlette.requests import ClientDisconnect, Request

from containers.serving.encodings import (
    ENCODINGS,
    Inflater,
    TooLarge,
    UnknownEncoding,
    body_encoding,
)

DISCARDED_BYTES = 64 << 20
DISCARDED_S = 1.0


class Refused(Exception):
    """A request that ends its connection, with the status and the headers of its answer."""

    def __init__(self, status: int, reason: str, **headers: str) -> None:
        super().__init__(reason)
        self.status = status
        self.headers = {"Connection": "close", **headers}


def encoding_of(request: Request) -> str:
    """Return the encoding of the body, or "" without one. Raises Refused: 415 for an unknown one."""
    try:
        return body_encoding(request.headers.get("content-encoding"))
    except UnknownEncoding as error:
        accepted = {"Accept-Encoding": ", ".join(ENCODINGS)}
        raise Refused(415, str(error), **accepted) from None


def too_large(limit_bytes: int) -> Refused:
    """Return the refusal of a body, 413."""
    return Refused(413, f"the body has more than {limit_bytes} bytes, the most this model needs")


async def read_body(
    request: Request,
    limit_bytes: int,
    limit_s: float,
    in_thread: Callable[[Callable[[], Any]], Awaitable[Any]],
) -> bytearray:
    """Return the body as it was before its encoding.

    Args:
        request: request, whose body is not read yet.
        limit_bytes: largest size, without the encoding.
        limit_s: longest time of the transfer, in seconds.
        in_thread: runs work in a thread.

    Raises:
        Refused: 408 for a slow body, 413 for one that is too large, 415 for an unknown encoding.
        InputError: the body is not in the encoding that it names.
    """
    try:
        async with asyncio.timeout(limit_s):
            if encoding := encoding_of(request):
                inflater = Inflater(encoding, limit_bytes)
                async for chunk in request.stream():
                    await in_thread(partial(inflater.feed, chunk))
                return inflater.finish()
            body = bytearray()
            async for chunk in request.stream():
                if len(body) + len(chunk) > limit_bytes:
                    raise too_large(limit_bytes)
                body += chunk
            return body
    except TooLarge:
        raise too_large(limit_bytes) from None
    except TimeoutError:
        raise Refused(408, f"the body took more than {limit_s:g} s") from None


async def discard_rest(request: Request) -> None:
    """Read what still comes of a refused body, within `DISCARDED_BYTES` and `DISCARDED_S`.

    The kernel resets a connection that is closed with unread bytes, and the client loses the answer. A client
    that waits for `100 Continue` sends nothing, and is not asked to.
    """
    if "expect" in request.headers:
        return
    remaining = DISCARDED_BYTES
    try:
        async with asyncio.timeout(DISCARDED_S):
            async for chunk in request.stream():
                remaining -= len(chunk)
                if remaining < 0:
                    return
    except (TimeoutError, ClientDisconnect, RuntimeError):  # the last: the body has come whole
        return
