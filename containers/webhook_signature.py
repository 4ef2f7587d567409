"""Whether a webhook comes from MLflow, and now.

MLflow signs `delivery id . timestamp . body` with HMAC-SHA256 under a secret that the receiver shares.
The signature covers the id and the time, so a body cannot be sent again under another id, nor an old
one with a new time. The order matters: nothing of an unsigned request is believed, not even its age.
"""

import base64
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WINDOW_S = 300.0
"""How far a delivery's time may be from ours."""

MAX_DELIVERY_ID = 128
_ID, _TIME, _SIGNATURE = "x-mlflow-delivery-id", "x-mlflow-timestamp", "x-mlflow-signature"


@dataclass(frozen=True, slots=True)
class Delivery:
    """A signed delivery; `expires` is the Unix time from which on its age alone refuses it."""

    id: str
    expires: float


class SignatureRefused(Exception):
    """Why a request is not believed: `forged` or `old`."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


def verify(
    headers: Mapping[str, str], body: bytes, secrets: Sequence[bytes], now_s: float
) -> Delivery:
    """Return the delivery. `secrets` are those in force, of which the sender knows one.

    Raises:
        SignatureRefused: unsigned, signed by another secret, changed, or too far from `now_s`.
    """
    identity, time, signature = (headers.get(name, "") for name in (_ID, _TIME, _SIGNATURE))
    if not identity or len(identity) > MAX_DELIVERY_ID or not time.isascii() or not time.isdigit():
        raise SignatureRefused("forged", "the request carries no signed delivery")
    signed = b".".join((identity.encode(), time.encode(), body))
    right = [hmac.compare_digest(signature.encode(), sign(signed, secret)) for secret in secrets]
    if not any(right):
        raise SignatureRefused("forged", "the signature is not ours")
    if len(time) > 15 or abs(now_s - int(time)) > WINDOW_S:
        raise SignatureRefused("old", "the delivery's time is not now; compare the clocks")
    return Delivery(identity, int(time) + WINDOW_S)


def sign(content: bytes, secret: bytes) -> bytes:
    """Return the header's value: `v1,` and the HMAC in base64."""
    return b"v1," + base64.b64encode(hmac.new(secret, content, hashlib.sha256).digest())
