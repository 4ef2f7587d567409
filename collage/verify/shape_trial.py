"""Trial of the ways for other shapes, in a child process: `python -m collage.verify.shape_trial`.

The child answers feeds through the dispatcher that serves (`collage.runtime.dispatch`): by the original model
in one framework, or by the executable with padded inputs. It returns the outputs as files and the latency of
each feed. Feeds follow each other in turn, so a framework that prepares itself for a shape pays for it as in
serving.
"""

import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from collage.errors import CollageError
from collage.frontend.limited_process import Allowance, Question, answer_limited, ask_limited
from collage.runtime.arrays import load_arrays, save_arrays
from collage.runtime.bundle_folder import BundleFolder
from collage.runtime.dispatch import Dispatcher
from collage.runtime.fallback import Fallback, fallback_document, read_fallback
from collage.runtime.json_fields import Field
from collage.runtime.manifest import Signature, read_signature
from collage.runtime.original_session import OriginalSession
from collage.runtime.padding import Crop, PaddedAxis
from collage.runtime.session import ExecutableSession
from collage.runtime.target import Target
from collage.store.blobs import digest_of

TURNS, TIMED_S = 3, 0.1
"""Least number of timed turns through all feeds, and their least time in seconds."""
_CPU_S = 600.0

Feed = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class TriedExecutable:
    """An executable with padded axes, in place of the original model."""

    path: Path
    signatures: tuple[Signature, ...]
    axes: tuple[PaddedAxis, ...]
    device: Target


@dataclass(frozen=True)
class Answer:
    """Answer to one feed: outputs by name with the latency in seconds, or the reason of a refusal."""

    outputs: Mapping[str, np.ndarray]
    seconds: float
    reason: str = ""


def try_feeds(
    way: Fallback | TriedExecutable,
    feeds: Sequence[Feed],
    *,
    files_dir: Path,
    threads: int,
    work_dir: Path,
) -> list[Answer]:
    """Answer the feeds by one way.

    Args:
        way: the original model, or an executable.
        feeds: inputs by name.
        files_dir: folder of the original model's files.
        threads: threads of the framework and the kernels.
        work_dir: folder for the arrays.

    Raises:
        InputError: the child died or took too long.
    """
    folder = work_dir / "shape-trial"
    folder.mkdir(exist_ok=True)
    for number, feed in enumerate(feeds):
        save_arrays(folder / f"feed-{number}.npz", feed)
    question = {
        "way": _described(way),
        "files_dir": os.path.abspath(files_dir),
        "folder": os.path.abspath(folder),
        "feeds": len(feeds),
        "threads": threads,
    }
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    answer = ask_limited(
        __name__, question, Allowance(memory_bytes, _CPU_S), files_dir, folder=work_dir
    )
    return [
        Answer({}, 0.0, reason)
        if reason
        else Answer(load_arrays(folder / f"outputs-{number}.npz"), float(seconds))
        for number, (reason, seconds) in enumerate(answer["answers"])
    ]


def _described(way: Fallback | TriedExecutable) -> dict[str, Any]:
    if isinstance(way, Fallback):
        return {"fallback": fallback_document(way)}
    return {
        "executable": os.path.abspath(way.path),
        "signatures": [asdict(signature) for signature in way.signatures],
        "axes": [asdict(axis) for axis in way.axes],
        "device": way.device.value,
    }


def _dispatcher(question: Question) -> Dispatcher:
    way, threads = question["way"], question["threads"]
    if "fallback" in way:
        fallback = read_fallback(Field(way["fallback"], "fallback"))
        folder = Path(question["files_dir"])
        opened = BundleFolder(folder)
        files = {
            name: opened.open_verified(name, digest_of(folder / name)) for name in fallback.files
        }
        return Dispatcher(None, OriginalSession(fallback, files, threads))
    session = ExecutableSession(
        Path(way["executable"]),
        tuple(map(read_signature, way["signatures"])),
        threads,
        Target(way["device"]),
    )
    axes = [
        PaddedAxis(
            axis["input"], axis["axis"], axis["value"], tuple(Crop(**c) for c in axis["crops"])
        )
        for axis in way["axes"]
    ]
    return Dispatcher(session, None, axes)


def _answer(question: Question) -> Mapping[str, Any]:
    """Answer the feeds, in the child."""
    folder = Path(question["folder"])
    feeds = [load_arrays(folder / f"feed-{number}.npz") for number in range(question["feeds"])]
    dispatcher = _dispatcher(question)
    reasons = [""] * len(feeds)
    for number, feed in enumerate(feeds):
        try:
            save_arrays(folder / f"outputs-{number}.npz", dispatcher.run(feed))
        except CollageError as error:
            reasons[number] = f"{type(error).__name__}: {error}"
    seconds = _seconds(
        dispatcher, [feed for feed, reason in zip(feeds, reasons, strict=True) if not reason]
    )
    answered = iter(seconds)
    return {"answers": [(reason, 0.0 if reason else next(answered)) for reason in reasons]}


def _seconds(dispatcher: Dispatcher, feeds: Sequence[Feed]) -> list[float]:
    """Return the median latency of each feed."""
    samples: list[list[float]] = [[] for _ in feeds]
    end = time.perf_counter() + TIMED_S
    turns = 0
    while feeds and (turns < TURNS or time.perf_counter() < end):
        turns += 1
        for feed, taken in zip(feeds, samples, strict=True):
            start = time.perf_counter_ns()
            dispatcher.run(feed)
            taken.append((time.perf_counter_ns() - start) * 1e-9)
    return [statistics.median(taken) for taken in samples]


if __name__ == "__main__":
    answer_limited(_answer)
