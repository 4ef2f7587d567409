"""Local measurers of fake kernels (`tests.measure.fakes`), in this process or in a child of a test."""

from pathlib import Path
from types import SimpleNamespace

from collage.cost import CostTable, Environment, LocalCostTable
from collage.measure.cache_flush import CacheFlush
from collage.measure.conditions import MeasuringConditions, WorkerLimits
from collage.measure.local import LocalMeasurer
from collage.measure.messages import KernelFolder

ENVIRONMENT = Environment("cpu", "features", 2, 1, driver="", protocol="test")
SMALL_FLUSH = CacheFlush(4 << 20)
FAULTS = {
    "refusing": "ConvTranspose is not supported",
    "wrong": "wrong numbers",
    "silent": "NaN",
    "in_place": "overwrites its input 0",
    "forgetful": "when called repeatedly",
    "raising": "RuntimeError: the vendor's last words",
    "printing": "IndexError: Gather_7: idx=131072 must be within [-100,99]",
    "printing_abort": "crashed: SIGABRT: Check failed: idx < size (131072 vs. 100)",
    "segfault": "crashed: SIGSEGV",
    "abort": "crashed: SIGABRT: terminate called after throwing",
    "exiting": "crashed: exit code 3",
    "hang": "timed out after 4 s",
    "hungry": "needs more than 0.25 GiB of memory",
}
"""Expected reasons of faulty kernels, by backend; numbers that a run prints may be a user's samples."""
HOSTILE = {
    "sharing": "needs more than 0.25 GiB of memory",
    "filing": "needs more than 0.25 GiB of memory",
    "littering": "writes more than 0.25 GiB of temporary files",
    "large_file": "File too large",
    "talkative": "prints more than 64 MiB",
    "compiling": "timed out",
    "compiling_and_crashing": "crashed: exit code 3",
    "telling": "",
    "lying": "crashed: it sent",
}
"""Expected reasons of hostile kernels."""
UNSTORED = {"killed": "worker died twice: SIGKILL", "full_disk": "No space left on device"}
"""Expected reasons of failures of the machine; they are not stored."""


def make_measurer(
    folder: Path,
    table: CostTable | None = None,
    *,
    conflicts: bool = False,
    cache_flush: CacheFlush = SMALL_FLUSH,
    kernels: KernelFolder | None = None,
    loader: str = "tests.measure.fakes:FakeKernelBuilder",
    **limits,
) -> LocalMeasurer:
    """Make a measurer; with `conflicts`, "good" and "noisy" cannot share a process.

    `limits` are fields of `WorkerLimits`.
    """
    reference = folder / "reference"
    reference.mkdir(exist_ok=True)
    names = ["good", "alone", "noisy", "killed_once", *FAULTS, *UNSTORED, *HOSTILE]
    apart = {name: frozenset({"noisy"}) for name in ("good",)} if conflicts else {}
    return LocalMeasurer(
        [SimpleNamespace(name="f", simplified=Path("f.onnx"), graph=range(64), has_samples=False)],
        [
            SimpleNamespace(
                name=name,
                identity=name,
                conflicts=apart.get(name, frozenset()),
            )
            for name in names
        ],
        LocalCostTable(folder) if table is None else table,
        MeasuringConditions(ENVIRONMENT, cache_flush=cache_flush),
        reference_dir=reference,
        limits=WorkerLimits(**{"timeout_s": 4.0, "memory_bytes": 256 << 20} | limits),
        kernels=kernels,
        loader=loader,
        digest=lambda function, nodes: str(nodes),
    )
