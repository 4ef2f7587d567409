"""Weights of kernels that differ: an executable with several functions holds equal ones once.

Kernels of two shape sets have the same weights and different shapes, so they are no equal kernels
(`shared_kernels`). Their weights are large ranges of equal bytes in their blobs: tensors of a blob, and raw
data of initialisers in an ONNX model. Each range that several functions have, in different kernels or in a
kernel of them all, is moved into a table of the executable, a symbol in its read-only data, and the blobs are
linked to it by digest. The plug-in reads the table in place (native/core/shared_weights.h), so it also keeps
one copy in memory, and none in a blob.

Any range would be correct, since a linked blob has the same bytes again: the parser below only decides
what is saved. On a GPU nothing is linked, as a provider's kernels are built apart.

Complexity: linear in the size of the blobs; only ranges with a possible equal are hashed.
"""

import hashlib
import logging
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from collage.assemble.function_plan import FunctionPlan
from collage.backends.base import PluginKernel
from collage.errors import ModelError
from collage.frontend.protobuf_wire import BYTES, WireReader
from collage.runtime.blob import ALIGNMENT, MAGIC, tensor_ranges

log = logging.getLogger(__name__)

SYMBOL = "collage_weights"
TABLE_MAGIC, LINKED_MAGIC = b"COLLAGEW", b"COLLAGEL"
MIN_BYTES = 16 << 10
"""Size of the smallest shared weight, in bytes."""
_PAGE_BYTES = 4096
_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9
"""Numbers of fields of an ONNX model."""

_Range = tuple[int, int]
"""First byte of a weight in a blob, and the end."""


@dataclass(frozen=True)
class _Link:
    """A range of a blob that is a shared weight."""

    start: int
    end: int
    digest: bytes


@dataclass
class WeightTable:
    """Shared weights of one executable by digest, in the order of their first kernels."""

    weights: dict[bytes, memoryview] = field(default_factory=dict)

    def write_source(self, folder: Path) -> Path:
        """Write the table beside a source that includes it, for the assembler; return the source."""
        data, source = folder / "weights.bin", folder / "weights.s"
        entries, place = [], _aligned(16 + 48 * len(self.weights))
        for digest, weight in self.weights.items():
            entries.append(digest + struct.pack("<QQ", place, len(weight)))
            place = _aligned(place + len(weight))
        with data.open("wb") as file:
            file.write(_padded(TABLE_MAGIC + struct.pack("<Q", len(entries)) + b"".join(entries)))
            for weight in self.weights.values():
                file.write(weight)
                file.write(bytes(_aligned(len(weight)) - len(weight)))
        source.write_text(
            f'.section .rodata.{SYMBOL},"a"\n.balign {_PAGE_BYTES}\n'
            f".globl {SYMBOL}\n.type {SYMBOL}, %object\n"
            f'{SYMBOL}:\n.incbin "{_escaped(data)}"\n.size {SYMBOL}, . - {SYMBOL}\n'
            f'.balign {_PAGE_BYTES}\n.section .note.GNU-stack,"",%progbits\n'
        )
        return source


def link_weights(plans: Sequence[FunctionPlan]) -> tuple[list[FunctionPlan], WeightTable]:
    """Return the plans with linked blobs, and the table of the weights that several functions have."""
    functions = Counter(blob for plan in plans for blob in dict.fromkeys(_blobs(plan)))
    table, linked = WeightTable(), {}
    for blob, links in _shared_links(functions).items():
        for link in links:
            table.weights.setdefault(link.digest, memoryview(blob)[link.start : link.end])
        linked[blob] = _linked(blob, links)
    return [_with_blobs(plan, linked) for plan in plans], table


def _blobs(plan: FunctionPlan) -> Iterator[bytes]:
    for planned in plan.kernels:
        if isinstance(planned.kernel, PluginKernel):
            yield planned.kernel.blob


def _with_blobs(plan: FunctionPlan, linked: Mapping[bytes, bytes]) -> FunctionPlan:
    kernels = tuple(
        replace(planned, kernel=replace(planned.kernel, blob=linked[planned.kernel.blob]))
        if isinstance(planned.kernel, PluginKernel) and planned.kernel.blob in linked
        else planned
        for planned in plan.kernels
    )
    return replace(plan, kernels=kernels)


def _shared_links(functions: Mapping[bytes, int]) -> dict[bytes, list[_Link]]:
    """Return the links of every blob with a weight of several functions.

    Args:
        functions: number of functions with each blob.
    """
    links = _possible_links(functions)
    users: Counter[bytes] = Counter()
    for blob, own in links.items():
        for digest in {link.digest for link in own}:
            users[digest] += functions[blob]
    shared = {blob: [link for link in own if users[link.digest] > 1] for blob, own in links.items()}
    return {blob: own for blob, own in shared.items() if own}


def _possible_links(functions: Mapping[bytes, int]) -> dict[bytes, list[_Link]]:
    """Return the links of every blob to weights that look like one of another function."""
    ranges = {blob: _weight_ranges(blob) for blob in functions}
    samples: Counter[tuple[int, bytes, bytes]] = Counter()
    for blob, own in ranges.items():
        for sample in {_sample(blob, start, end) for start, end in own}:
            samples[sample] += functions[blob]
    return {
        blob: [
            _Link(start, end, hashlib.sha256(memoryview(blob)[start:end]).digest())
            for start, end in own
            if samples[_sample(blob, start, end)] > 1
        ]
        for blob, own in ranges.items()
    }


def _sample(blob: bytes, start: int, end: int) -> tuple[int, bytes, bytes]:
    """Return what equal ranges have in common, without a look at all bytes."""
    return end - start, blob[start : start + ALIGNMENT], blob[end - ALIGNMENT : end]


def _linked(blob: bytes, links: Sequence[_Link]) -> bytes:
    """Return the blob without its shared weights; native/core/linked_bytes.h has the format."""
    parts = [LINKED_MAGIC, struct.pack("<Q", len(links))]
    parts += [link.digest + struct.pack("<QQ", link.start, link.end - link.start) for link in links]
    starts = [0, *(link.end for link in links)]
    ends = [*(link.start for link in links), len(blob)]
    parts += [blob[start:end] for start, end in zip(starts, ends, strict=True)]
    return b"".join(parts)


def _weight_ranges(blob: bytes) -> list[_Range]:
    """Return the large weights of a blob, ascending and without overlaps."""
    if not blob.startswith(MAGIC):
        return []
    return list(_ranges_inside(blob, 0))


def _ranges_inside(blob: bytes, first: int) -> Iterator[_Range]:
    """Yield the weights of the blob that begins at byte `first`."""
    for dtype, start, end in tensor_ranges(blob, first):
        if end - start < MIN_BYTES:
            continue
        if dtype != "uint8":
            yield start, end
        elif blob.startswith(MAGIC, start):
            yield from _ranges_inside(blob, start)
        else:
            yield from _initializers(blob, start, end) or [(start, end)]


def _initializers(blob: bytes, start: int, end: int) -> list[_Range]:
    """Return the large initialisers of the ONNX model in the bytes [start, end); none in other bytes."""
    reader = WireReader(blob)
    ranges = [(start, end)]
    try:
        for number in (_GRAPH, _INITIALIZER, _RAW_DATA):
            ranges = [
                (inner.start, inner.end)
                for outer in ranges
                for inner in reader.fields(*outer)
                if inner.number == number and inner.kind == BYTES
                and inner.end - inner.start >= MIN_BYTES
            ]  # fmt: skip
    except ModelError as error:
        log.debug("a tensor of bytes is no ONNX model: %s", error)
        return []
    return ranges


def _escaped(path: Path) -> str:
    return str(path).replace("\\", "\\\\").replace('"', '\\"')


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT


def _padded(data: bytes) -> bytes:
    return data.ljust(_aligned(len(data)), b"\0")
