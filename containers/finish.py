"""Builds the bundle of a request on the serving node: assemble, compare, gate, sign, publish."""

import argparse
import sys
import tempfile
from pathlib import Path

from collage.cli.signing import add_sign_options, alias_signing
from collage.cluster.pod.answers import answer_finish
from containers.entry_point import run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", required=True, help="address of the store")
    parser.add_argument("--request", required=True, help="digest of the request")
    parser.add_argument("--environment", required=True, help="digest of the node's environment")
    parser.add_argument("--answer", required=True, help="key of the result in the store")
    add_sign_options(parser)
    arguments = parser.parse_args()
    return run(lambda: _finish(arguments))


def _finish(arguments: argparse.Namespace) -> str:
    with tempfile.TemporaryDirectory(prefix="collage-") as scratch:
        answer_finish(
            arguments.store,
            arguments.request,
            arguments.environment,
            arguments.answer,
            scratch=Path(scratch),
            signing=alias_signing(arguments),
        )
    return "finished"


if __name__ == "__main__":
    sys.exit(main())
