"""Entry point of the measuring image: `shard` measures, `build` builds, `probe` says what the node is."""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from collage.cluster.pod.answers import answer_probe
from collage.cluster.pod.build_shard import build_shard
from collage.cluster.pod.measure_shard import measure_shard
from containers.entry_point import run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, what in (("shard", "measure"), ("build", "build the kernels of")):
        shard = commands.add_parser(name, help=f"{what} one shard of a batch")
        shard.add_argument("--store", required=True, help="address of the store")
        shard.add_argument("--batch", required=True, help="digest of the batch")
        shard.add_argument("--index", type=int, default=os.environ.get("JOB_COMPLETION_INDEX", "0"))
        if name == "shard":
            shard.add_argument(
                "--builds", nargs="*", default=[], metavar="TOKEN=BATCH",
                help="Jobs that build kernels of this batch meanwhile",
            )  # fmt: skip
        else:
            shard.add_argument("--token", default="", help="of the Job, for those who wait for it")
    probe = commands.add_parser("probe", help="write what this node is into the store")
    probe.add_argument("--store", required=True, help="address of the store")
    probe.add_argument("--request", required=True, help="digest of the request")
    probe.add_argument("--answer", required=True, help="key of the answer in the store")
    given = parser.parse_args()
    return run(lambda: _probe(given) if given.command == "probe" else _shard(given))


def _shard(given: argparse.Namespace) -> str:
    with tempfile.TemporaryDirectory(prefix="collage-") as folder:
        scratch = Path(folder)
        if given.command == "build":
            return build_shard(given.store, given.batch, given.index, scratch, given.token)
        builds = dict(one.split("=", 1) for one in given.builds)
        return measure_shard(given.store, given.batch, given.index, scratch, builds)


def _probe(given: argparse.Namespace) -> str:
    answer_probe(given.store, given.request, given.answer)
    return "probed"


if __name__ == "__main__":
    sys.exit(main())
