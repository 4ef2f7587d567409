"""What an ELF file says of its own protection, read from its headers (System V ABI, 64-bit little-endian)."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PT_DYNAMIC, PT_GNU_STACK, PT_GNU_RELRO = 2, 0x6474E551, 0x6474E552
DT_STRTAB, DT_STRSZ, DT_FLAGS, DT_FLAGS_1 = 5, 10, 30, 0x6FFFFFFB
DF_BIND_NOW, DF_1_NOW, EXECUTABLE = 8, 1, 1
PT_LOAD = 1


@dataclass(frozen=True)
class Segment:
    kind: int
    flags: int
    offset: int
    address: int
    size: int


@dataclass(frozen=True)
class Protection:
    """`strings` are those of the dynamic section: names of the functions that it calls, among others."""

    binds_now: bool
    has_relro: bool
    stack_executes: bool
    strings: frozenset[str]


def read_protection(file: Path) -> Protection:
    data = file.read_bytes()
    segments = list(_segments(data))
    kinds = {segment.kind: segment for segment in segments}
    dynamic = dict(_dynamic(data, kinds[PT_DYNAMIC]))
    start = _offset(segments, dynamic[DT_STRTAB])
    strings = data[start : start + dynamic[DT_STRSZ]].decode().split("\0")
    stack = kinds.get(PT_GNU_STACK)
    return Protection(
        binds_now=bool(
            dynamic.get(DT_FLAGS, 0) & DF_BIND_NOW or dynamic.get(DT_FLAGS_1, 0) & DF_1_NOW
        ),
        has_relro=PT_GNU_RELRO in kinds,
        stack_executes=stack is None or bool(stack.flags & EXECUTABLE),
        strings=frozenset(strings),
    )


def _segments(data: bytes) -> Iterator[Segment]:
    assert data[:6] == b"\x7fELF\x02\x01"
    (table,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    for number in range(count):
        kind, flags, offset, address, _, length = struct.unpack_from(
            "<IIQQQQ", data, table + number * size
        )
        yield Segment(kind, flags, offset, address, length)


def _dynamic(data: bytes, segment: Segment) -> Iterator[tuple[int, int]]:
    for at in range(segment.offset, segment.offset + segment.size, 16):
        tag, value = struct.unpack_from("<QQ", data, at)
        yield tag, value


def _offset(segments: list[Segment], address: int) -> int:
    loads = (segment for segment in segments if segment.kind == PT_LOAD)
    load = next(
        segment for segment in loads if segment.address <= address < segment.address + segment.size
    )
    return address - load.address + load.offset
