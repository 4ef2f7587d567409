"""One worker process as its parent sees it: pipes, limits, and how it ended.

Nothing here blocks: the measurer waits for all workers at once and calls `read` when bytes are there.
The worker asks the kernel to kill it when the thread that started it ends, so one thread must start
all workers and outlive them, or accept that they are replaced.

A worker runs what models bring. It leads a process group, and compilers that it started end with it; its
environment has no secrets; it has a folder of its own for temporary files, which is removed after it; what
it says is data (`measure.answers`), and what it prints has a limit.
"""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from collage.measure.answers import AnswerReader, BadAnswerError
from collage.measure.messages import Answer, Request, Setup, pack_request
from collage.measure.process_usage import Usage
from collage.runtime.child_environment import python_environment
from collage.runtime.process_group import end_code, end_group

WORKER = "collage.measure.worker"
LAST_WORDS_BYTES = 4096
MAX_OUTPUT_BYTES = 64 << 20


class WorkerProcess:
    """A worker that was started and told its setup."""

    def __init__(self, setup: Setup, module: str = WORKER) -> None:
        self._reader = AnswerReader()
        self._fault = ""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
        self._scratch = tempfile.TemporaryDirectory(
            prefix="collage-worker-", ignore_cleanup_errors=True
        )
        requests, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        command = [sys.executable, "-m", module, "--parent", str(os.getpid())]
        try:
            self._process = subprocess.Popen(
                [*command, "--requests", str(requests), "--answers", str(answers)],
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=self._errors,
                env=python_environment(setup.threads, self._scratch.name),
                pass_fds=(requests, answers),
                start_new_session=True,
            )
        finally:
            os.close(requests)
            os.close(answers)
        self._usage = Usage(self._process.pid, Path(self._scratch.name))
        self.send(setup)

    def fileno(self) -> int:
        """Of the pipe to wait for."""
        return self._answers

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, request: Request) -> None:
        """Send a small message to a worker that waits; one that died is noticed by `read`."""
        data = pack_request(request)
        try:
            while data:
                data = data[os.write(self._requests, data) :]
        except BrokenPipeError:
            return

    def read(self) -> list[Answer] | None:
        """Return the answers that have arrived; None at the worker's end, and of one that lies."""
        data = os.read(self._answers, 1 << 20)
        try:
            return self._reader.feed(data) if data else None
        except BadAnswerError as error:
            self.reject_answer(str(error))
            return None

    def reject_answer(self, answer: str) -> None:
        """End a worker that sent what it may not."""
        self._fault = f"it sent {answer}"
        end_group(self._process)

    def own_bytes(self) -> int:
        """Memory that is the worker's own: shared memory counts, files that it maps do not."""
        return self._usage.memory_bytes()

    def excess(self, memory_bytes: int) -> str:
        """Return which limit the worker exceeds, "" if none: memory, temporary files, or output."""
        if self.own_bytes() > memory_bytes:
            return f"needs more than {memory_bytes / (1 << 30):.2g} GiB of memory"
        if self._usage.file_bytes() > memory_bytes:
            return f"writes more than {memory_bytes / (1 << 30):.2g} GiB of temporary files"
        if os.fstat(self._errors.fileno()).st_size > MAX_OUTPUT_BYTES:
            return f"prints more than {MAX_OUTPUT_BYTES >> 20} MiB"
        return ""

    def kill(self) -> None:
        """End the process and all that it started, and release everything. Call once."""
        end_group(self._process)
        os.close(self._requests)
        os.close(self._answers)
        self._errors.close()
        self._scratch.cleanup()

    def exit_reason(self) -> str:
        """Say how the process ended: its signal or exit code, and its last words if it chose to."""
        code = end_code(self._process)
        if self._fault:
            return self._fault
        if code < 0 and -code != signal.SIGABRT:
            return signal.Signals(-code).name
        ending = "SIGABRT" if code < 0 else f"exit code {code}"
        words = self._last_words()
        return f"{ending}: {words}" if words else ending

    @property
    def was_killed(self) -> bool:
        """SIGKILL comes from outside: the candidate may not be to blame."""
        return end_code(self._process) == -signal.SIGKILL and not self._fault

    def _last_words(self) -> str:
        end = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, end - LAST_WORDS_BYTES))
        lines = self._errors.read().decode(errors="replace").split("\n")
        said = [line.strip() for line in lines if line.strip()]
        return said[-1][:300] if said else ""
