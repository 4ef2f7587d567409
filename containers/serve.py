"""A model server for one bundle: `python -m containers.serve --bundle DIR --name ocr --port 8080`.

It speaks the open inference protocol v2 over HTTP and needs the extra `serve` alone (and `s3`, for a
bundle in S3): no compiler, no ONNX. The bundle's digests, processor, libraries and golden data are
checked before the port opens, so whoever can connect gets right numbers. SIGTERM closes the port,
answers what was begun, and ends with 0.
"""

import argparse
import hashlib
import logging
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import uvicorn

from collage.cli_base import duration, size
from collage.cli_signing import add_verify_options, verification
from collage.errors import CollageError
from collage.logs import configure_logs
from collage.options import Options
from collage.runtime.loader import load
from collage.runtime.manifest import refuse_unproven
from containers.serving.app import Limits, Server
from containers.serving.engine import Engine

log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM; return the exit code (those of `collage`)."""
    parsed = _parser().parse_args(arguments)
    configure_logs("serve")
    start = time.perf_counter()
    try:
        with tempfile.TemporaryDirectory(prefix="collage-bundle-") as scratch:
            folder = _bundle(parsed, Path(scratch) / "bundle")
            engine = _engine(folder, parsed)
            version = hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()[:12]
            facts = {"seconds": round(time.perf_counter() - start, 3), "copies": engine.copies}
            log.info("loaded %s version %s", parsed.name, version, extra=facts)
            server = Server(
                parsed.name, version, engine, Limits(parsed.max_body, parsed.body_timeout)
            )
            return _serve(server, parsed)
    except CollageError as error:
        log.error("%s", error)
        return error.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m containers.serve", description=__doc__)
    parser.add_argument(
        "--bundle", required=True, help="a bundle's folder, or with --alias a store"
    )
    parser.add_argument("--alias", help="name or digest of the bundle in the store --bundle")
    parser.add_argument("--name", default="model", help="of the model in URLs (default: model)")
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument(
        "--threads", type=int, default=1,
        help="requests computed at once, each by a copy of the executable (default 1)",
    )  # fmt: skip
    parser.add_argument("--queue", type=int, default=64, help="requests that may wait (default 64)")
    parser.add_argument("--max-body", type=size, default=64 << 20, metavar="64MiB")
    parser.add_argument("--body-timeout", type=duration, default=30.0, metavar="30s")
    parser.add_argument(
        "--stop-timeout", type=duration, default=25.0, metavar="25s",
        help="for requests under way after SIGTERM",
    )  # fmt: skip
    add_verify_options(parser)
    parser.add_argument(
        "--cache-dir", type=Path,
        help="remembers the newest record of each alias of a store, so that an older one is refused",
    )  # fmt: skip
    return parser


def _bundle(parsed: argparse.Namespace, scratch: Path) -> Path:
    """The folder of the bundle."""
    seen = (parsed.cache_dir or Options().store_dir) / "seen-aliases"
    checks = verification(parsed, seen)
    if parsed.alias is not None:
        from collage.store import open_store
        from collage.store.bundles import fetch_bundle

        store = open_store(parsed.bundle, writes=False)
        fetch_bundle(store, parsed.alias, scratch, verification=checks)
    return Path(parsed.bundle) if parsed.alias is None else scratch


def _engine(folder: Path, parsed: argparse.Namespace) -> Engine:
    first = load(folder, parsed.verify_key)
    refuse_unproven(first.manifest, f"the bundle {folder}")
    copies = [first, *(first.copy() for _ in range(1, parsed.threads))]
    for bundle in copies:
        bundle.check()
    return Engine(copies, max(0, parsed.queue))


def _serve(server: Server, parsed: argparse.Namespace) -> int:
    config = uvicorn.Config(
        server.application(), host=parsed.host, port=parsed.port, log_config=None, lifespan="off",
        access_log=False, timeout_graceful_shutdown=int(parsed.stop_timeout), server_header=False,
    )  # fmt: skip
    http = uvicorn.Server(config)
    # uvicorn stops gracefully on SIGTERM and then raises the signal once more, for whoever was there.
    signal.signal(signal.SIGTERM, lambda *_: None)
    http.run()
    return 0 if http.started else 1


if __name__ == "__main__":
    sys.exit(main())
