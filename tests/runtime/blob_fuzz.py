"""Mutated blobs: a seed with a few numbers, names or lists of its header changed, or bytes of the whole.

    python -m tests.runtime.blob_fuzz [SECONDS] [SEED] [KIND ...]

runs for so long in this process and prints how many were refused and how many ran; the next blob is left in
`blob-fuzz-last.bin`, so that a crash can be played again. `cases` yields a fixed number of them for a test.
What OpenVINO and ONNX Runtime make of their models is theirs: only headers are changed there. Kind
"shared_library" is left out: its code is trusted, and which constants and arguments it takes only it knows.
"""

import json
import random
import struct
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from collage.runtime.blob import ALIGNMENT, MAGIC
from tests.runtime.blob_run import Case, run
from tests.runtime.blob_seeds import Seed, seeds

COUNTS = {
    "blocked": 1500, "winograd": 1000, "onednn": 1200, "onnxruntime": 300, "openvino": 60,
}  # fmt: skip
"""Mutants of a kind in a test, by what one costs."""
FIRST_SEED = 20
NUMBERS = (
    -(2**63), -(2**40), -(2**31), -64, -2, -1, 0, 1, 2, 3, 5, 7, 8, 16, 31, 33, 63, 64, 65, 255, 4096,
    2**31 - 1, 2**31, 2**32, 2**32 + 1, 2**61, 2**62, 2**63 - 1,
)  # fmt: skip
OWN = ("blocked", "winograd", "onednn")
"""Kinds that are fuzzed where none is named."""
MOST_THREADS = 3
"""Of a mutant: thousands that nobody needs are right, and slow."""


def mutant(seed: Seed, chance: random.Random) -> bytes:
    """A blob that is one to three changes away from the seed's."""
    header, data = _parts(seed.blob)
    for _ in range(chance.randint(1, 3)):
        _change(header, chance)
    if isinstance(threads := header.get("threads"), int):
        header["threads"] = min(threads, MOST_THREADS)
    blob = _joined(header, data)
    if chance.random() < 0.1:
        blob = _damaged(blob, chance)
    return blob


def _parts(blob: bytes) -> tuple[dict[str, Any], bytes]:
    (length,) = struct.unpack_from("<Q", blob, len(MAGIC))
    start = len(MAGIC) + 8
    return json.loads(blob[start : start + length]), blob[
        -(-(start + length) // ALIGNMENT) * ALIGNMENT :
    ]


def _joined(header: dict[str, Any], data: bytes) -> bytes:
    text = json.dumps(header).encode()
    start = MAGIC + struct.pack("<Q", len(text)) + text
    return start + bytes(-len(start) % ALIGNMENT) + data


def _damaged(blob: bytes, chance: random.Random) -> bytes:
    """Cut short, or with a byte before the tensors changed."""
    if chance.random() < 0.5:
        return blob[: chance.randrange(len(blob))]
    (length,) = struct.unpack_from("<Q", blob, len(MAGIC))
    at = chance.randrange(len(MAGIC) + 8 + length)
    return blob[:at] + bytes([chance.randrange(256)]) + blob[at + 1 :]


def _change(header: dict[str, Any], chance: random.Random) -> None:
    """Change one entry somewhere in the header, the deeper the likelier."""
    place: Any = header
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return
        key = chance.choice(keys)
        inner = place[key]
        if isinstance(inner, dict | list) and inner and chance.random() < 0.9:
            place = inner
            continue
        place[key] = _other(inner, chance)
        if chance.random() < 0.1:
            del place[key]
        elif isinstance(place, list) and chance.random() < 0.1:
            place.insert(key, inner)
        return


def _other(value: Any, chance: random.Random) -> Any:
    if isinstance(value, int) and chance.random() < 0.95:
        near = (value - 1, value + 1, value * 2, value // 2, -value)
        return chance.choice(near if chance.random() < 0.5 else NUMBERS)
    if isinstance(value, float):
        return chance.choice((0.0, -1.0, 1e300, 3.5))
    return chance.choice(
        (None, True, 0, -1, 1.5, "", "float16", "relu", [], {}, [[]], [value, value])
    )


def mutants(kind: str, first: int) -> Iterator[Case]:
    """Without end; equal numbers give equal mutants."""
    seed, number = seeds()[kind], first
    while True:
        chance = random.Random(f"{kind} {number}")
        blob = mutant(seed, chance)
        case = Case(f"{kind} {number}", kind, blob, seed.inputs, seed.outputs)
        if chance.random() < 0.05:
            case = replace(case, dtypes={0: chance.choice(("int32", "float16", "float64"))})
        yield case
        number += 1


def cases() -> Iterator[Case]:
    """So many of each kind as a test has time for."""
    for kind, count in COUNTS.items():
        for case, _ in zip(mutants(kind, FIRST_SEED), range(count), strict=False):
            yield case


def main() -> None:
    from collage.runtime.plugin import load_plugin

    load_plugin()
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    first = int(sys.argv[2]) if len(sys.argv) > 2 else FIRST_SEED
    streams = [mutants(kind, first) for kind in sys.argv[3:] or OWN]
    counts: Counter[str] = Counter()
    last = Path("blob-fuzz-last.bin")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for stream in streams:
            case = next(stream)
            last.write_bytes(case.blob)
            try:
                counts[f"{case.kind}: {run(case) or 'ran'}"] += 1
            except (ValueError, RuntimeError):
                counts[f"{case.kind}: refused"] += 1
    last.unlink()
    print(json.dumps(counts, indent=2, sort_keys=True))


if __name__ == "__main__":
    main()
