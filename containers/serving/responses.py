"""Answers whose memory is reserved until their client has them."""

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from containers.serving.encodings import GZIP, compress
from containers.serving.memory import Reservation
from containers.serving.protocol import HEADER_LENGTH, Answer


def compressed(answer: Answer) -> Answer:
    """Return the answer in gzip."""
    return Answer(compress(answer.body), answer.header_length, encoding=GZIP)


class ReservedResponse(Response):
    """An answer with reserved memory until the client has received it, or is cut off."""

    def __init__(self, answer: Answer, reservation: Reservation) -> None:
        headers = {} if answer.header_length is None else {HEADER_LENGTH: str(answer.header_length)}
        kind = "application/octet-stream" if headers else "application/json"
        if answer.encoding:
            headers |= {"Content-Encoding": answer.encoding, "Vary": "Accept-Encoding"}
        super().__init__(answer.body, 200, headers, kind)
        reservation.resize(2 * len(answer.body))  # here, and in the connection's buffer
        self._reservation = reservation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send head and body, and an empty end, accepted by the server after the body is sent."""
        head = {
            "type": "http.response.start",
            "status": self.status_code,
            "headers": self.raw_headers,
        }
        try:
            await send(head)
            await send({"type": "http.response.body", "body": self.body, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._reservation.release()
