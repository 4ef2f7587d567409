"""Entry point of the measuring image: `shard` measures, `build` builds, `probe` says what the node is."""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from collage.cluster.building import build_shard
from collage.cluster.measuring import measure_shard
from collage.cluster.pod import answer_probe
from containers.program import run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, what in (("shard", "measure"), ("build", "build the kernels of")):
        shard = commands.add_parser(name, help=f"{what} one shard of a batch")
        shard.add_argument("--store", required=True, help="address of the store")
        shard.add_argument("--batch", required=True, help="digest of the batch")
        shard.add_argument("--index", type=int, default=os.environ.get("JOB_COMPLETION_INDEX", "0"))
    probe = commands.add_parser("probe", help="write what this node is into the store")
    probe.add_argument("--store", required=True, help="address of the store")
    probe.add_argument("--request", required=True, help="digest of the request")
    probe.add_argument("--answer", required=True, help="key of the answer in the store")
    given = parser.parse_args()
    return run(lambda: _probe(given) if given.command == "probe" else _shard(given))


def _shard(given: argparse.Namespace) -> str:
    work = build_shard if given.command == "build" else measure_shard
    with tempfile.TemporaryDirectory(prefix="collage-") as scratch:
        return work(given.store, given.batch, given.index, Path(scratch))


def _probe(given: argparse.Namespace) -> str:
    answer_probe(given.store, given.request, given.answer)
    return "probed"


if __name__ == "__main__":
    sys.exit(main())
