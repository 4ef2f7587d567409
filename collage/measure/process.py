"""One worker process as its parent sees it: pipes, limits, and how it ended.

Nothing here blocks: the measurer waits for all workers at once and calls `read` when bytes are there.
The worker asks the kernel to kill it when the thread that started it ends, so one thread must start
all workers and outlive them, or accept that they are replaced.
"""

import os
import signal
import subprocess
import sys
import tempfile

from collage.measure.messages import Answer, AnswerReader, Request, Setup, pack_frame
from collage.runtime.plugin import thread_environment

WORKER = "collage.measure.worker"
LAST_WORDS_BYTES = 4096
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class WorkerProcess:
    """A worker that was started and told its setup."""

    def __init__(self, setup: Setup, module: str = WORKER) -> None:
        self._reader = AnswerReader()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
        requests, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        command = [sys.executable, "-m", module, "--parent", str(os.getpid())]
        try:
            self._process = subprocess.Popen(
                [*command, "--requests", str(requests), "--answers", str(answers)],
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=self._errors,
                env=_environment(setup.threads),
                pass_fds=(requests, answers),
            )
        finally:
            os.close(requests)
            os.close(answers)
        self.send(setup)

    def fileno(self) -> int:
        """Of the pipe to wait for."""
        return self._answers

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, request: Request) -> None:
        """Send a small message to a worker that waits; one that died is noticed by `read`."""
        data = pack_frame(request)
        try:
            while data:
                data = data[os.write(self._requests, data) :]
        except BrokenPipeError:
            return

    def read(self) -> list[Answer] | None:
        """Return the answers that have arrived; None at the worker's end."""
        data = os.read(self._answers, 1 << 20)
        return self._reader.feed(data) if data else None

    def own_bytes(self) -> int:
        """Resident memory that is the worker's own: files that it maps (the reference) are not."""
        try:
            with open(f"/proc/{self.pid}/statm") as file:
                fields = file.read().split()
        except (FileNotFoundError, ProcessLookupError):
            return 0
        resident, from_files = int(fields[1]), int(fields[2])
        return (resident - from_files) * PAGE_BYTES

    def kill(self) -> None:
        """End the process, if it still runs, and release everything. Call once."""
        self._process.kill()
        self._process.wait()
        os.close(self._requests)
        os.close(self._answers)

    def epitaph(self) -> str:
        """Say how the process ended: its signal or exit code, and its last words if it chose to."""
        code = self._process.wait()
        if code < 0 and -code != signal.SIGABRT:
            return signal.Signals(-code).name
        how = "SIGABRT" if code < 0 else f"exit code {code}"
        words = self._last_words()
        return f"{how}: {words}" if words else how

    @property
    def was_killed(self) -> bool:
        """SIGKILL comes from outside: the candidate may not be to blame."""
        return self._process.wait() == -signal.SIGKILL

    def _last_words(self) -> str:
        end = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, end - LAST_WORDS_BYTES))
        lines = self._errors.read().decode(errors="replace").split("\n")
        said = [line.strip() for line in lines if line.strip()]
        return said[-1][:300] if said else ""


def _environment(threads: int) -> dict[str, str]:
    """The parent's, with the deployment's threads; the worker finds the modules that we found."""
    return {
        **os.environ,
        **thread_environment(threads),
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
