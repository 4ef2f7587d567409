"""Answers of a worker process to its parent: small JSON documents, each field checked.

A worker runs kernels and compilers from models and can write anything, so its parent unpickles nothing.
A frame is a length (8 bytes, little endian) and a JSON document with the answer's name and its fields.
After the first invalid frame the parent reads no further answers of the worker.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from collage.cost.cost import Cost
from collage.measure.call_overhead import DispatchOverhead
from collage.measure.messages import (
    LENGTH,
    Answer,
    Built,
    KernelRefused,
    MeasurementOutcome,
    Ready,
    Trial,
    TuningEnded,
)

MAX_ANSWER_BYTES = 8 << 20
MAX_REASON = 4000
MAX_SAMPLES = 100_000

Fields = Mapping[str, Any]


class BadAnswerError(ValueError):
    """A worker sent an invalid frame."""


def pack_answer(answer: Answer) -> bytes:
    """Return the frame of an answer."""
    document = {"answer": type(answer).__name__, **asdict(answer)}
    data = json.dumps(document, default=float).encode()
    return LENGTH.pack(len(data)) + data


class AnswerReader:
    """Collects bytes as they arrive and splits them into answers."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[Answer]:
        """Return the answers completed by `data`. Raises BadAnswerError; the reader is useless then."""
        self._data += data
        answers: list[Answer] = []
        while len(self._data) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._data)
            if length > MAX_ANSWER_BYTES:
                raise BadAnswerError(f"an answer of {length} bytes")
            end = LENGTH.size + length
            if len(self._data) < end:
                break
            answers.append(unpack_answer(bytes(self._data[LENGTH.size : end])))
            del self._data[:end]
        return answers


def unpack_answer(data: bytes) -> Answer:
    """Parse the document of a frame. Raises BadAnswerError for anything but an answer."""
    try:
        document = json.loads(data)
        read = _READERS[document.pop("answer")]
        return read(document)
    except BadAnswerError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise BadAnswerError(f"an invalid answer: {type(error).__name__}") from None


def _ready(fields: Fields) -> Ready:
    boundary = _only(fields, "boundary")["boundary"]
    if boundary is None:
        return Ready()
    _only(boundary, "call_s", "launch_s")
    return Ready(DispatchOverhead(_seconds(boundary["call_s"]), _seconds(boundary["launch_s"])))


def _outcome(fields: Fields) -> MeasurementOutcome:
    _only(fields, "cost", "durable", "drifted", "built")
    flags = {name: _flag(fields[name]) for name in ("durable", "drifted", "built")}
    return MeasurementOutcome(_cost(fields["cost"]), **flags)


def _cost(fields: Fields) -> Cost:
    _only(fields, "seconds", "low", "high", "samples", "reason", "build_s", "error", "hides_nan")
    samples = fields["samples"]
    if not isinstance(samples, list) or len(samples) > MAX_SAMPLES:
        raise BadAnswerError("invalid samples")
    reason, seconds = _text(fields["reason"], MAX_REASON), _number(fields["seconds"])
    if math.isnan(seconds) or seconds < 0 or math.isinf(seconds) != bool(reason):
        raise BadAnswerError(f"a cost of {seconds} s, {reason[:100] or 'without a reason'}")
    return Cost(
        seconds,
        _number(fields["low"]),
        _number(fields["high"]),
        tuple(_seconds(sample) for sample in samples),
        reason=reason,
        build_s=_seconds(fields["build_s"]),
        error=_number(fields["error"]),
        hides_nan=_flag(fields["hides_nan"]),
    )


def _trial(fields: Fields) -> Trial:
    _only(fields, "trace", "latency_s", "trial_s", "reason", "lost")
    latency_s = _number(fields["latency_s"])
    if math.isnan(latency_s) or latency_s < 0:
        raise BadAnswerError(f"a trial of {latency_s} s")
    return Trial(
        _text(fields["trace"], MAX_ANSWER_BYTES),
        latency_s,
        _seconds(fields["trial_s"]),
        _text(fields["reason"], MAX_REASON),
        lost=_flag(fields["lost"]),
    )


_READERS: Mapping[str, Callable[[Fields], Answer]] = {
    "Ready": _ready,
    "KernelRefused": lambda fields: KernelRefused(
        _text(_only(fields, "reason")["reason"], MAX_REASON)
    ),
    "Built": lambda fields: Built(**_only(fields)),
    "MeasurementOutcome": _outcome,
    "Trial": _trial,
    "TuningEnded": lambda fields: TuningEnded(_text(_only(fields, "reason")["reason"], MAX_REASON)),
}


def _only(fields: Fields, *names: str) -> Fields:
    if not isinstance(fields, dict) or set(fields) != set(names):
        raise BadAnswerError("an answer with other fields")
    return fields


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadAnswerError("an invalid number")
    return float(value)


def _seconds(value: object) -> float:
    seconds = _number(value)
    if not 0 <= seconds < math.inf:
        raise BadAnswerError(f"a time of {seconds} s")
    return seconds


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise BadAnswerError("an invalid flag")
    return value


def _text(value: object, max_length: int) -> str:
    if not isinstance(value, str) or len(value) > max_length:
        raise BadAnswerError("an invalid or too long text")
    return value
