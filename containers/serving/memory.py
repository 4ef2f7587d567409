"""Memory of active requests: reserved before use, from one fixed amount.

The model determines the largest request: `body_limit` allows `ELEMENT_TEXT` characters for each number of
its inputs. The length of a body determines its largest cost: a request reserves it before the first byte is
read, and is refused at once (503) if too little is free. After parsing, the reservation shrinks to the arrays
and the answer, and later to the answer alone until the client has it. So all requests together never use
more than `Memory.size_bytes`.

    body        9/8 of its bytes (a buffer that grows)
    JSON        its text once decoded and once more, and min(32 x its bytes, objects); the arrays
    objects     64 bytes a number and 96 a list of the inputs, and those of the rest of a request
    answer      its bytes three times; as JSON 128 bytes more for each of its numbers
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from collage.runtime.manifest import Signature, Tensor
from containers.serving.bounded_json import BYTES_PER_BYTE, JsonLimits

ELEMENT_TEXT = 32
"""Characters for one number in JSON: a double has 24, and space around it."""
LIST_TEXT, TENSOR_TEXT, REQUEST_TEXT = 16, 1 << 10, 64 << 10
_NUMBER, _LIST, _ANSWER_NUMBER = 64, 96, 128


class Overloaded(Exception):
    """No place or no memory is free for another request."""


class Memory:
    """An amount of bytes for reservations of requests; used by one event loop."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.reserved_bytes = 0

    def reserve(self, size_bytes: int) -> "Reservation":
        """Reserve an amount. Raises Overloaded if too little is free."""
        reservation = Reservation(self)
        reservation.resize(size_bytes)
        return reservation


class Reservation:
    """A reserved part of the memory, until `release`."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._bytes = 0

    def resize(self, size_bytes: int) -> None:
        """Change the size to `size_bytes`. Raises Overloaded, without a change, if too little is free."""
        memory = self._memory
        total = memory.reserved_bytes + size_bytes - self._bytes
        if size_bytes > self._bytes and total > memory.size_bytes:
            raise Overloaded(
                f"the requests under way have {memory.reserved_bytes >> 20} of "
                f"{memory.size_bytes >> 20} MiB; try again, or elsewhere"
            )
        memory.reserved_bytes = total
        self._bytes = size_bytes

    def release(self) -> None:
        self.resize(0)


OTHER_SHAPES_TIMES = 4
"""Size of the largest request that the fallback answers, relative to the largest function's."""


@dataclass(frozen=True)
class RequestCosts:
    """Limits and costs of one model's requests; sizes in bytes."""

    json: JsonLimits
    body_bytes: int
    objects_bytes: int
    arrays_bytes: int

    def reading(self, body_bytes: int, json_bytes: int) -> int:
        """Return the cost of reading and parsing a body with `json_bytes` of JSON at its start."""
        objects = min(BYTES_PER_BYTE * json_bytes, self.objects_bytes)
        arrays = min(ELEMENT_TEXT * json_bytes, self.arrays_bytes)
        return body_bytes * 9 // 8 + 2 * json_bytes + objects + arrays

    def largest(self, signatures: Sequence[Signature]) -> int:
        """Return the cost of the largest request with outputs of known sizes."""
        outputs = max(
            answering(map(_size, signature.outputs), binary=False) for signature in signatures
        )
        return max(self.reading(self.body_bytes, self.body_bytes), self.arrays_bytes + outputs)


def request_costs(
    signatures: Sequence[Signature], max_body_bytes: int | None, times: int = 1
) -> RequestCosts:
    """Derive limits from the functions.

    Args:
        signatures: functions of the bundle.
        max_body_bytes: limit of the body, in bytes; None: by the largest request.
        times: size of the largest request relative to the largest function, default 1.
    """
    elements = times * _largest(signatures, lambda tensor: _size(tensor)[0])
    lists = times * _largest(signatures, _lists)
    tensors = max(len(signature.inputs) + len(signature.outputs) for signature in signatures)
    text = REQUEST_TEXT + TENSOR_TEXT * tensors + ELEMENT_TEXT * elements + LIST_TEXT * lists
    limits = JsonLimits(
        values=elements + lists + 1024, lists=lists + 256, objects=256 + 4 * tensors,
        strings=1024 + 32 * tensors, depth=16 + max(len(_shape(t)) for s in signatures for t in s.inputs),
    )  # fmt: skip
    return RequestCosts(
        json=limits,
        body_bytes=min(text, max_body_bytes or text),
        objects_bytes=_NUMBER * elements + _LIST * lists + BYTES_PER_BYTE * REQUEST_TEXT,
        arrays_bytes=times * _largest(signatures, lambda tensor: _size(tensor)[1]),
    )


def answering(outputs: Iterable[tuple[int, int]], *, binary: bool) -> int:
    """Return the cost of an answer by its outputs' elements and bytes, as bytes or as JSON."""
    return sum(3 * size + (0 if binary else _ANSWER_NUMBER * count) for count, size in outputs)


def known_outputs(
    signatures: Sequence[Signature], inputs: Mapping[str, np.ndarray]
) -> list[tuple[int, int]]:
    """Return elements and bytes of the outputs for these inputs, as far as known in advance."""
    shapes = {name: value.shape for name, value in inputs.items()}
    for signature in signatures:
        expected = {tensor.name: tensor.shape for tensor in signature.inputs}
        if expected == expected | shapes:  # inputs with a default may be missing
            return [_size(tensor) for tensor in signature.outputs]
    return []


def _largest(signatures: Sequence[Signature], cost: Callable[[Tensor], int]) -> int:
    return max(sum(map(cost, signature.inputs)) for signature in signatures)


def _size(tensor: Tensor) -> tuple[int, int]:
    """Return elements and bytes; 0 if they depend on data."""
    elements = max(0, prod(_shape(tensor))) if tensor.shape is not None else 0
    is_known = min(_shape(tensor), default=0) >= 0
    return (elements, elements * np.dtype(tensor.dtype).itemsize) if is_known else (0, 0)


def _lists(tensor: Tensor) -> int:
    shape = _shape(tensor)
    return sum(prod(shape[:rank]) for rank in range(len(shape)))


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tensor.shape or ()
