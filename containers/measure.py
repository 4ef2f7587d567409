"""Entry point of the measuring image: `shard` measures, `build` builds kernels, `probe` describes a node."""

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
    for name, action in (("shard", "measure"), ("build", "build the kernels of")):
        shard = commands.add_parser(name, help=f"{action} one shard of a batch")
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
    arguments = parser.parse_args()
    return run(lambda: _probe(arguments) if arguments.command == "probe" else _shard(arguments))


def _shard(arguments: argparse.Namespace) -> str:
    with tempfile.TemporaryDirectory(prefix="collage-") as folder:
        scratch = Path(folder)
        if arguments.command == "build":
            return build_shard(
                arguments.store, arguments.batch, arguments.index, scratch, token=arguments.token
            )
        builds = dict(build.split("=", 1) for build in arguments.builds)
        return measure_shard(
            arguments.store, arguments.batch, arguments.index, scratch, builds=builds
        )


def _probe(arguments: argparse.Namespace) -> str:
    answer_probe(arguments.store, arguments.request, arguments.answer)
    return "probed"


if __name__ == "__main__":
    sys.exit(main())
