"""A worker process in its parent: pipes, limits, exit reason.

No method blocks: the measurer waits for all workers at once and calls `read` when bytes are available.
The operating system kills a worker when the thread that started it ends, so one thread must start all
workers and outlive them, or accept their replacement.

A worker runs code from models. It leads a process group, so its compilers end with it. Its environment has
no secrets. Its temporary files are in a folder of its own, removed after its end. Its answers are plain
data (`measure.answers`), and its output has a limit.
"""

import os
import signal
import tempfile
from pathlib import Path

from collage.masking import mask_numbers
from collage.measure.answers import AnswerReader, BadAnswerError
from collage.measure.messages import Answer, Request, Setup, pack_request
from collage.measure.process_usage import Usage
from collage.runtime.child_environment import python_environment
from collage.runtime.process_group import end_code, end_group, last_line, start_group

WORKER = "collage.measure.worker"
MAX_OUTPUT_BYTES = 64 << 20


class WorkerProcess:
    """A started worker with its setup."""

    def __init__(self, setup: Setup, module: str = WORKER) -> None:
        self._reader = AnswerReader()
        self._fault = ""
        self._has_samples = setup.has_samples
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
        self._scratch = tempfile.TemporaryDirectory(
            prefix="collage-worker-", ignore_cleanup_errors=True
        )
        requests, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        pipes = ["--requests", str(requests), "--answers", str(answers)]
        try:
            self._process = start_group(
                module,
                ["--parent", str(os.getpid()), *pipes],
                environment=python_environment(setup.threads, self._scratch.name),
                stdout=self._errors,
                stderr=self._errors,
                pass_fds=(requests, answers),
            )
        finally:
            os.close(requests)
            os.close(answers)
        self._usage = Usage(self._process.pid, Path(self._scratch.name))
        self.send(setup)

    def fileno(self) -> int:
        """Return the descriptor of the answers' pipe."""
        return self._answers

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, request: Request) -> None:
        """Send a small message to a waiting worker; `read` reports its exit."""
        data = pack_request(request)
        try:
            while data:
                data = data[os.write(self._requests, data) :]
        except BrokenPipeError:
            return

    def read(self) -> list[Answer] | None:
        """Return the answers so far; None after the worker's exit or an invalid answer."""
        data = os.read(self._answers, 1 << 20)
        try:
            return self._reader.feed(data) if data else None
        except BadAnswerError as error:
            self.reject_answer(str(error))
            return None

    def reject_answer(self, answer: str) -> None:
        """End a worker after an invalid answer."""
        self._fault = f"it sent {answer}"
        end_group(self._process)

    def own_bytes(self) -> int:
        """Memory of the worker: shared memory counts, mapped files do not."""
        return self._usage.memory_bytes()

    def excess(self, memory_bytes: int) -> str:
        """Return the exceeded limit in words, or "": memory, temporary files, or output."""
        if self.own_bytes() > memory_bytes:
            return f"needs more than {memory_bytes / (1 << 30):.2g} GiB of memory"
        if self._usage.file_bytes() > memory_bytes:
            return f"writes more than {memory_bytes / (1 << 30):.2g} GiB of temporary files"
        if os.fstat(self._errors.fileno()).st_size > MAX_OUTPUT_BYTES:
            return f"prints more than {MAX_OUTPUT_BYTES >> 20} MiB"
        return ""

    def kill(self) -> None:
        """End the process and its children, and release all resources. Call once."""
        end_group(self._process)
        os.close(self._requests)
        os.close(self._answers)
        self._errors.close()
        self._scratch.cleanup()

    def exit_reason(self) -> str:
        """Return the signal or exit code; after an abort or an exit, with the last line of output.

        Numbers in this line may be values of inputs and are masked.
        """
        code = end_code(self._process)
        if self._fault:
            return self._fault
        if code < 0 and -code != signal.SIGABRT:
            return signal.Signals(-code).name
        ending = "SIGABRT" if code < 0 else f"exit code {code}"
        message = last_line(self._errors)
        if self._has_samples:
            message = mask_numbers(message)
        return f"{ending}: {message}" if message else ending

    @property
    def was_killed(self) -> bool:
        """True after SIGKILL from outside: the candidate may not be the cause."""
        return end_code(self._process) == -signal.SIGKILL and not self._fault
