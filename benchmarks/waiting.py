"""Spin time of idle threads: a bundle of two or more threads, run with each setting.

    python -m benchmarks.waiting BUNDLE [--rounds 3]

Every cell is its own process (libraries read the settings when they are loaded); rounds are interleaved. The
second column is the same with a busy process on every core, the worst case for spinning threads. Ratios are
relative to the first row: threads that sleep at once.
"""

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

from collage.runtime.plugin import WAITING

RUN = "import sys, collage; print(collage.load(sys.argv[1]).benchmark(1.0))"
SETTINGS = {
    "asleep at once": {"GOMP_SPINCOUNT": "0"},
    "shorter": {"GOMP_SPINCOUNT": "1000"},
    "as shipped": WAITING,
    "longer": {"GOMP_SPINCOUNT": "100000"},
}


def seconds(bundle: Path, settings: dict[str, str]) -> float:
    """Run the bundle in a process with these environment variables; return the median seconds."""
    environment = os.environ | WAITING | settings
    command = [sys.executable, "-c", RUN, str(bundle)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout)


def medians(bundle: Path, rounds: int) -> list[float]:
    """Run all settings in turn, `rounds` times."""
    samples = [[seconds(bundle, settings) for settings in SETTINGS.values()] for _ in range(rounds)]
    return [statistics.median(column) for column in zip(*samples, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    alone = medians(arguments.bundle, arguments.rounds)
    spin = [sys.executable, "-c", "while True: pass"]
    spinners = [subprocess.Popen(spin) for _ in range(os.cpu_count() or 1)]
    try:
        busy = medians(arguments.bundle, arguments.rounds)
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()
    print(f"{'idle threads':<24}{'alone ms':>10}{'ratio':>7}{'busy ms':>10}{'ratio':>7}")
    for name, alone_s, busy_s in zip(SETTINGS, alone, busy, strict=True):
        ratios = (alone_s / alone[0], busy_s / busy[0])
        print(
            f"{name:<24}{alone_s * 1e3:10.2f}{ratios[0]:7.2f}{busy_s * 1e3:10.2f}{ratios[1]:7.2f}"
        )


if __name__ == "__main__":
    main()
