"""Entry point of the measuring image: `shard` measures, `probe` says what the node is."""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from collage.cluster.pod import answer_probe, measure_shard
from containers.program import run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    shard = commands.add_parser("shard", help="measure one shard of a batch")
    shard.add_argument("--store", required=True, help="address of the store")
    shard.add_argument("--batch", required=True, help="digest of the batch")
    shard.add_argument("--index", type=int, default=os.environ.get("JOB_COMPLETION_INDEX", "0"))
    probe = commands.add_parser("probe", help="write what this node is into the store")
    probe.add_argument("--store", required=True, help="address of the store")
    probe.add_argument("--request", required=True, help="digest of the request")
    probe.add_argument("--answer", required=True, help="key of the answer in the store")
    given = parser.parse_args()
    return run(lambda: _shard(given) if given.command == "shard" else _probe(given))


def _shard(given: argparse.Namespace) -> str:
    with tempfile.TemporaryDirectory(prefix="collage-") as scratch:
        return measure_shard(given.store, given.batch, given.index, Path(scratch))


def _probe(given: argparse.Namespace) -> str:
    answer_probe(given.store, given.request, given.answer)
    return "probed"


if __name__ == "__main__":
    sys.exit(main())
