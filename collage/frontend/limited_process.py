"""One request to a child process with resource limits: both ends of the protocol.

An untrusted model can make ONNX's libraries fold a gigabyte of zeros, crash, or never end. So a child
process does the work, with limits of private memory (RLIMIT_DATA), processor time and file size, and
without secrets in its environment. Request and answer are JSON files, the answer of bounded length; large
results are files under the same limits. A child starts in less than half a second.

Every failure is a refusal with a reason: an InputError, hence exit code 2.
"""

import json
import logging
import math
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from collage.errors import CollageError, DimensionError, InputError, ModelError, OptionError
from collage.import_limits import MEMORY, SECONDS, import_limits
from collage.masking import mask_numbers
from collage.runtime.child import die_with_parent
from collage.runtime.child_environment import python_environment
from collage.runtime.process_group import end_group, last_line, output_tail, start_group

_OUT_OF_MEMORY = 77
"""Exit code of a child without memory, even for an answer."""
_KINDS: dict[str, type[InputError]] = {
    kind.__name__: kind for kind in (InputError, ModelError, DimensionError, OptionError)
}
_WALL_FACTOR, _WALL_SPARE_S = 4.0, 30.0
"""Wall-clock limit relative to processor time, and extra seconds, for a busy machine."""
_MAX_ANSWER_BYTES = 16 << 20

Question = Mapping[str, Any]
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Allowance:
    """Limits of one child: private memory in bytes, processor time in seconds."""

    memory_bytes: int
    cpu_s: float


def ask_limited(
    module: str, question: Question, allowance: Allowance, path: Path, *, folder: Path
) -> dict[str, Any]:
    """Run `module` in a child process on a request about the model at `path`.

    Args:
        module: dotted name of the child's main module.
        question: request, JSON values only.
        allowance: limits of the child.
        path: path of the model, for messages.
        folder: existing folder for temporary files.

    Raises:
        InputError: error of the child, or the reason for an exit without an answer.
    """
    with tempfile.TemporaryDirectory(prefix="limited-", dir=folder) as scratch:
        question_file, answer_file = Path(scratch) / "question.json", Path(scratch) / "answer.json"
        limits = {
            "parent": os.getpid(),
            "memory_bytes": allowance.memory_bytes,
            "cpu_s": math.ceil(allowance.cpu_s),
        }
        question_file.write_text(json.dumps({"limits": limits, "question": dict(question)}))
        with tempfile.TemporaryFile() as stderr:
            code = _run([module, str(question_file), str(answer_file)], allowance, path, stderr)
            if code:
                raise _refusal(path, code, allowance, stderr)
        return _read_answer(path, answer_file)


def answer_limited(answer: Callable[[Question], Mapping[str, Any]]) -> None:
    """Main of the child: set the limits, answer the request, and exit."""
    question_file, answer_file = sys.argv[1:]
    document = json.loads(Path(question_file).read_text())
    _limit_process(document["limits"])
    try:
        content = dict(answer(document["question"]))
    except MemoryError:
        os._exit(_OUT_OF_MEMORY)
    except CollageError as error:
        content = {"error": type(error).__name__, "message": str(error)}
        if isinstance(error, DimensionError):
            content["missing"] = dict(error.missing)
    Path(answer_file).write_text(json.dumps(content))
    os._exit(0)


def _run(arguments: list[str], allowance: Allowance, path: Path, stderr: IO[bytes]) -> int:
    module, *files = arguments
    environment = python_environment(1, os.path.dirname(files[-1]))
    process = start_group(module, files, environment=environment, stdout=stderr, stderr=stderr)
    try:
        return process.wait(_WALL_FACTOR * allowance.cpu_s + _WALL_SPARE_S)
    except subprocess.TimeoutExpired:
        raise _too_slow(path, allowance) from None
    finally:
        end_group(process)


def _limit_process(limits: Mapping[str, int]) -> None:
    die_with_parent(limits["parent"])
    for kind, limit in (
        (resource.RLIMIT_DATA, limits["memory_bytes"]),
        (resource.RLIMIT_FSIZE, limits["memory_bytes"]),
        (resource.RLIMIT_CPU, limits["cpu_s"]),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(kind)
        allowed = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (allowed, hard))


def _refusal(path: Path, code: int, allowance: Allowance, stderr: IO[bytes]) -> ModelError:
    output = mask_numbers("\n".join(output_tail(stderr)))
    logger.debug("%s: the import process exited with %s: %s", path, code, output)
    message = mask_numbers(last_line(stderr))
    if code == -signal.SIGXCPU:
        return _too_slow(path, allowance)
    if (
        code in (_OUT_OF_MEMORY, -signal.SIGKILL)
        or "MemoryError" in message
        or "bad_alloc" in output
    ):
        return ModelError(
            f"{path}: reading and running it takes more than {gib(allowance.memory_bytes)} of memory; set"
            f" {MEMORY} (now {gib(import_limits().memory_bytes)}) higher if you trust the model"
        )
    if code < 0:
        name = signal.Signals(-code).name
        return ModelError(f"{path}: the model crashes the libraries that read it ({name})")
    return ModelError(f"{path}: the model cannot be read: {message or f'exit code {code}'}")


def _too_slow(path: Path, allowance: Allowance) -> ModelError:
    return ModelError(
        f"{path}: reading and running it takes more than {allowance.cpu_s:.0f} s; set {SECONDS} (now"
        f" {import_limits().cpu_s:.0f}) higher if you trust the model"
    )


def _read_answer(path: Path, file: Path) -> dict[str, Any]:
    with file.open("rb") as stream:
        content = stream.read(_MAX_ANSWER_BYTES + 1)
    if len(content) > _MAX_ANSWER_BYTES:
        raise ModelError(f"{path}: the names in it are too many or too long")
    answer: dict[str, Any] = json.loads(content)
    if "error" in answer:
        raise _error(answer)
    return answer


def _error(answer: Mapping[str, Any]) -> InputError:
    kind, message = _KINDS.get(str(answer["error"]), ModelError), str(answer["message"])
    if kind is DimensionError:
        return DimensionError(message, dict(answer.get("missing", {})))
    return kind(message)


def gib(size_bytes: float) -> str:
    """Format a size in GiB."""
    return f"{size_bytes / (1 << 30):.3g} GiB"
