"""A model server for one bundle: `python -m containers.serve --bundle DIR --name ocr --port 8080`.

Each entry of the bundle is a model of its own (`containers.serving.app.served_models`).
It speaks the open inference protocol v2 over HTTP and needs the extra `serve` alone (and `s3`, for a
bundle in S3): no compiler, no ONNX. The bundle's digests, processor, libraries and golden data are
checked before the port opens, and the golden data again while nobody asks. How big a request may be
follows from the model, and how much memory all requests use together from `--memory`. At SIGTERM the server
is unready at once, goes on answering while proxies learn of it (`--drain`), closes the port, answers what
was begun, and ends with 0; a call that never ends ends the process with 1.
"""

import argparse
import hashlib
import logging
import math
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from collage.cli.signing import add_verify_options, verification
from collage.errors import CollageError, OptionError
from collage.logs import configure_logs
from collage.option_text import parse_duration, parse_size
from collage.options import Options
from collage.runtime.loader import load
from collage.runtime.manifest import refuse_unproven
from collage.store import open_store
from collage.store.bundles import fetch_bundle
from containers.connections import ConnectionLimits, http_config
from containers.draining import DrainingServer
from containers.listening import EVERY_ADDRESS, open_socket
from containers.serving.app import Limits, Server
from containers.serving.engine import Engine
from containers.serving.memory import OTHER_SHAPES_TIMES, Memory, request_costs
from containers.serving.protocol import check_types
from containers.serving.watchdog import Watchdog

log = logging.getLogger(__name__)


DEFAULT_MEMORY = 256 << 20
SHORTEST_CALL_S, CALL_TIMES = 30.0, 20.0
"""A call may take as long as the check at the start took, so many times, and never less than that."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM; return the exit code (those of `collage`)."""
    parsed = _parser().parse_args(arguments)
    configure_logs("serve")
    start = time.perf_counter()
    try:
        with tempfile.TemporaryDirectory(prefix="collage-bundle-") as scratch:
            folder = _bundle(parsed, Path(scratch) / "bundle")
            engine = _engine(folder, parsed)
            limits = _limits(engine, parsed)
            version = hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()[:12]
            facts = {
                "seconds": round(time.perf_counter() - start, 3), "copies": engine.copies,
                "body_bytes": limits.costs.body_bytes, "memory_bytes": limits.memory.size_bytes,
                "resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
                "call_s": engine.call_s,
            }  # fmt: skip
            log.info("loaded %s version %s", parsed.name, version, extra=facts)
            code = _serve(version, engine, limits, parsed)
    except CollageError as error:
        log.error("%s", error)
        return error.exit_code
    if engine.longest_s() > engine.call_s:
        os._exit(code or 1)  # a thread that never ends would be waited for
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m containers.serve", description=__doc__)
    parser.add_argument(
        "--bundle", required=True, help="a bundle's folder, or with --alias a store"
    )
    parser.add_argument("--alias", help="name or digest of the bundle in the store --bundle")
    parser.add_argument("--name", default="model", help="of the model in URLs (default: model)")
    parser.add_argument(
        "--host",
        default=EVERY_ADDRESS,
        help="address to listen on (default ::, every IPv4 and IPv6 one)",
    )
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument(
        "--threads", type=int, default=1,
        help="requests computed at once, each by a copy of the executable (default 1)",
    )  # fmt: skip
    parser.add_argument("--queue", type=int, default=64, help="requests that may wait (default 64)")
    parser.add_argument(
        "--memory", type=parse_size, metavar="256MiB",
        help="for all requests under way together (default 256MiB, or two of the largest)",
    )  # fmt: skip
    parser.add_argument(
        "--max-body",
        type=parse_size,
        metavar="64MiB",
        help="of one body, below what the model needs",
    )
    parser.add_argument(
        "--call-timeout", type=parse_duration,
        help="of one call of the model; a call of twice that ends the process "
        "(default 30s, or 20 times the check at the start)",
    )  # fmt: skip
    parser.add_argument(
        "--watchdog", type=parse_duration, default=10.0, metavar="10s",
        help="compute the golden data where nothing was asked for so long (default 10s; 0s: never)",
    )  # fmt: skip
    _add_connections(parser)
    parser.add_argument(
        "--drain", type=parse_duration, default=5.0, metavar="5s",
        help="between SIGTERM, which makes the server unready, and the end of the port (default 5s)",
    )  # fmt: skip
    parser.add_argument(
        "--stop-timeout", type=parse_duration, default=20.0, metavar="20s",
        help="for requests under way after the drain (default 20s)",
    )  # fmt: skip
    parser.add_argument(
        "--gzip", type=parse_size, metavar="64KiB",
        help="compress JSON answers from this size on for clients that accept it (default: none)",
    )  # fmt: skip
    add_verify_options(parser)
    parser.add_argument(
        "--cache-dir", type=Path,
        help="remembers the newest record of each alias of a store, so that an older one is refused",
    )  # fmt: skip
    return parser


def _add_connections(parser: argparse.ArgumentParser) -> None:
    for name, default, description in (
        ("body", 30.0, "a body may take to arrive"), ("head", 10.0, "a request's head may take"),
        ("idle", 75.0, "a connection may stay between requests"),
        ("write", 30.0, "a client may take to read its answer"),
    ):  # fmt: skip
        parser.add_argument(
            f"--{name}-timeout", type=parse_duration, default=default, metavar=f"{default:g}s",
            help=f"{description} (default {default:g}s)",
        )  # fmt: skip
    parser.add_argument(
        "--max-connections", type=int, default=512,
        help="then the one that was idle for longest is closed (default 512)",
    )  # fmt: skip


def _bundle(parsed: argparse.Namespace, scratch: Path) -> Path:
    """The folder of the bundle."""
    counters = (parsed.cache_dir or Options().store_dir) / "seen-aliases"
    checks = verification(parsed, counters)
    if parsed.alias is not None:
        store = open_store(parsed.bundle, writes=False)
        fetch_bundle(store, parsed.alias, scratch, verification=checks)
    return Path(parsed.bundle) if parsed.alias is None else scratch


def _engine(folder: Path, parsed: argparse.Namespace) -> Engine:
    first = load(folder, parsed.verify_key)
    refuse_unproven(first.manifest, f"the bundle {folder}")
    for entry in first.entries:
        check_types(first.manifest.functions_of(entry))
    copies = [first, *(first.copy() for _ in range(1, parsed.threads))]
    checks_s = []
    for bundle in copies:
        begin = time.perf_counter()
        bundle.check()
        checks_s.append(time.perf_counter() - begin)
    call_s = parsed.call_timeout or max(SHORTEST_CALL_S, CALL_TIMES * max(checks_s))
    return Engine(copies, max(0, parsed.queue), call_s)


def _limits(engine: Engine, parsed: argparse.Namespace) -> Limits:
    has_fallback = any(engine.fallback_of(entry) for entry in engine.entries)
    times = OTHER_SHAPES_TIMES if has_fallback else 1
    costs = request_costs(engine.signatures, parsed.max_body, times)
    largest = costs.largest(engine.signatures)
    memory_bytes = parsed.memory or max(DEFAULT_MEMORY, 2 * largest)
    if memory_bytes < largest:
        raise OptionError(
            f"--memory {memory_bytes >> 20}MiB is too little: one request of this model may need "
            f"{(largest >> 20) + 1} MiB. Give at least that, or lower --max-body."
        )
    return Limits(costs, Memory(memory_bytes), parsed.body_timeout, gzip_from=parsed.gzip)


def _serve(version: str, engine: Engine, limits: Limits, parsed: argparse.Namespace) -> int:
    connections = ConnectionLimits(
        parsed.max_connections, parsed.head_timeout, parsed.idle_timeout, parsed.write_timeout
    )

    def give_up() -> None:
        http.should_exit = True

    watchdog = Watchdog(engine, parsed.watchdog or math.inf, give_up)
    server = Server(parsed.name, version, engine, limits, watchdog=watchdog)
    listener = open_socket(parsed.host, parsed.port)
    config = http_config(
        server.application(), connections, lifespan="on",
        timeout_graceful_shutdown=int(parsed.stop_timeout),
    )  # fmt: skip
    http = DrainingServer(config, parsed.drain, server.drain)
    # uvicorn stops gracefully on SIGTERM and then raises the signal once more, for whoever was there.
    signal.signal(signal.SIGTERM, lambda *_: None)
    http.run([listener])
    return 0 if http.started and not watchdog.gave_up else 1


if __name__ == "__main__":
    sys.exit(main())
