"""The commands about a store: publish, unpublish, fetch, alias, unalias, aliases, gc."""

import argparse
from pathlib import Path

from collage.cli.arguments import Commands, add_command, print_result
from collage.cli.signing import (
    add_model_options,
    add_sign_options,
    add_verify_options,
    alias_signing,
    bundle_signing,
    verification,
)
from collage.errors import OptionError
from collage.option_text import parse_duration
from collage.options import Options

STORE_HELP = "directory, or s3://bucket/prefix?endpoint=...&addressing=path"


def add_store_commands(commands: Commands) -> None:
    """Add the commands to the parser."""
    for parser in (
        *_publish_commands(commands),
        _fetch_command(commands),
        *_alias_commands(commands),
        _gc_command(commands),
    ):
        parser.add_argument("--json", action="store_true", help="print one JSON document")


def _publish_commands(commands: Commands) -> tuple[argparse.ArgumentParser, ...]:
    publish = add_command(
        commands, "publish", _publish, "copy a bundle to a store; its gate must have passed"
    )
    publish.add_argument("bundle", type=Path)
    publish.add_argument("store", help=STORE_HELP)
    publish.add_argument(
        "--alias", action="append", default=[], metavar="NAME",
        help="point the alias NAME (e.g. ocr/production) to the bundle; repeatable",
    )  # fmt: skip
    add_sign_options(publish)
    add_model_options(publish)
    unpublish = add_command(
        commands,
        "unpublish",
        _unpublish,
        "remove a bundle without aliases; gc frees its space",
    )
    unpublish.add_argument("store", help=STORE_HELP)
    unpublish.add_argument("bundle", help="digest of the bundle")
    return publish, unpublish


def _fetch_command(commands: Commands) -> argparse.ArgumentParser:
    fetch = add_command(
        commands, "fetch", _fetch, "copy a bundle from a store: STORE --alias NAME DIR"
    )
    fetch.add_argument("store", help=STORE_HELP)
    fetch.add_argument("words", nargs="*", metavar="NAME|DIR",
                       help="alias or digest (without --alias); directory (without -o)")  # fmt: skip
    fetch.add_argument(  # argparse passes the directory after the name to this option
        "--alias",
        nargs="+",
        default=[],
        metavar=("NAME", "DIR"),
        help="alias, or digest of a bundle",
    )
    fetch.add_argument("-o", "--output", type=Path, metavar="DIR", help="bundle directory")
    fetch.add_argument(
        "--cache-dir", type=Path, help="cache of fetched files (default: the user's cache)"
    )
    fetch.add_argument("--no-cache", action="store_true", help="do not read or write the cache")
    add_verify_options(fetch)
    return fetch


def _alias_commands(commands: Commands) -> tuple[argparse.ArgumentParser, ...]:
    alias = add_command(commands, "alias", _alias, "point an alias to a published bundle")
    alias.add_argument("store", help=STORE_HELP)
    alias.add_argument("name", help="name of the alias")
    alias.add_argument("bundle", help="digest of the bundle, or another alias")
    alias.add_argument("--expect", metavar="DIGEST", help="only if NAME points to this bundle now")
    add_sign_options(alias)
    unalias = add_command(commands, "unalias", _unalias, "remove an alias")
    unalias.add_argument("store", help=STORE_HELP)
    unalias.add_argument("name", help="name of the alias")
    unalias.add_argument(
        "--expect", metavar="DIGEST", help="only if NAME points to this bundle now"
    )
    add_sign_options(unalias)
    aliases = add_command(commands, "aliases", _aliases, "list the aliases and their bundles")
    aliases.add_argument("store", help=STORE_HELP)
    return alias, unalias, aliases


def _gc_command(commands: Commands) -> argparse.ArgumentParser:
    gc = add_command(
        commands,
        "gc",
        _gc,
        "delete unreferenced objects of a store; without --delete only list them",
    )
    gc.add_argument("store", help=STORE_HELP)
    gc.add_argument(
        "--delete", action="store_true", help="delete; without it the objects are only listed"
    )
    gc.add_argument(
        "--older-than", type=parse_duration, default="24h", metavar="24h|7d",
        help="minimum age (default 24h): a publisher may be about to use younger objects",
    )  # fmt: skip
    gc.add_argument(
        "--keep", type=_retention, action="append", default=[], metavar="KIND=30d",
        help="retention of a kind of record since its last write: requests=30d, results=90d, "
        "searches=90d, costs=180d, shards=30d, usage=400d; repeatable",
    )  # fmt: skip
    return gc


def _retention(text: str) -> tuple[str, float]:
    kind, _, age = text.partition("=")
    if kind not in ("requests", "results", "searches", "costs", "shards", "usage"):
        raise argparse.ArgumentTypeError(f"{text!r} names no kind of record")
    return kind, parse_duration(age)


def _publish(arguments: argparse.Namespace) -> int:
    from collage.store import open_store
    from collage.store.bundles import publish_bundle

    signing = bundle_signing(arguments)
    store = open_store(arguments.store)
    publication = publish_bundle(store, arguments.bundle, arguments.alias, signing)
    moves = [
        f"{name} {'now points' if name in publication.moved else 'already pointed'} to it"
        for name in arguments.alias
    ]
    facts = {"bundle": publication.digest, "moved": list(publication.moved)}
    print_result(arguments.json, facts, "\n".join([publication.digest, *moves]))
    return 0


def _unpublish(arguments: argparse.Namespace) -> int:
    from collage.store import open_store
    from collage.store.base import BlobDigest
    from collage.store.bundles import unpublish_bundle

    unpublish_bundle(open_store(arguments.store, writes=False), BlobDigest(arguments.bundle))
    text = f"{arguments.bundle} is unpublished; `collage gc` frees its space"
    print_result(arguments.json, {"unpublished": arguments.bundle}, text)
    return 0


def _fetch(arguments: argparse.Namespace) -> int:
    from collage.store import open_store
    from collage.store.bundles import fetch_bundle
    from collage.store.cache import BundleCache

    name, output = _name_and_output(arguments)
    folder = arguments.cache_dir or Options().store_dir / "fetched"
    checks = verification(arguments, folder / "seen-aliases")
    digest = fetch_bundle(
        open_store(arguments.store, writes=False),
        name,
        output,
        cache=None if arguments.no_cache else BundleCache(folder),
        verification=checks,
    )
    print_result(arguments.json, {"bundle": digest, "folder": str(output)}, str(output))
    return 0


def _name_and_output(arguments: argparse.Namespace) -> tuple[str, Path]:
    """Split the words of `fetch` into the alias or digest and the output directory."""
    words = [*arguments.alias, *arguments.words]
    name = words.pop(0) if words else None
    output = arguments.output or (Path(words.pop(0)) if words else None)
    if name is None or output is None or words:
        raise OptionError(
            "fetch: write `collage fetch STORE --alias NAME DIR`, or STORE NAME -o DIR"
        )
    return name, output


def _alias(arguments: argparse.Namespace) -> int:
    from collage.store import open_store
    from collage.store.alias_counters import Verification
    from collage.store.bundle_aliases import assign_alias, find_bundle
    from collage.store.manifests import require_proven

    signing = alias_signing(arguments)
    store = open_store(arguments.store)
    alias_counters = Options().store_dir / "fetched" / "seen-aliases"
    checks = Verification(signing.keys, alias_counters) if signing else None
    digest = find_bundle(store, arguments.bundle, checks)
    require_proven(store, digest)
    moved = assign_alias(store, arguments.name, digest, arguments.expect, signing=signing)
    facts = {"alias": arguments.name, "bundle": digest, "moved": moved}
    print_result(
        arguments.json, facts, f"{arguments.name}  {digest}{'' if moved else '  (unchanged)'}"
    )
    return 0


def _unalias(arguments: argparse.Namespace) -> int:
    from collage.store import open_store
    from collage.store.aliases import remove_alias

    signing, store = alias_signing(arguments), open_store(arguments.store)
    removed = remove_alias(store, arguments.name, arguments.expect, signing=signing)
    text = "is removed" if removed else "does not exist"
    print_result(
        arguments.json, {"alias": arguments.name, "removed": removed}, f"{arguments.name} {text}"
    )
    return 0


def _aliases(arguments: argparse.Namespace) -> int:
    from collage.store import open_store
    from collage.store.aliases import list_aliases

    aliases = list(list_aliases(open_store(arguments.store, writes=False, must_exist=True)))
    facts = [
        {"alias": alias.name, "bundle": alias.bundle, "previous": alias.previous}
        for alias in aliases
    ]
    width = max((len(alias.name) for alias in aliases), default=0)
    rows = "\n".join(f"{alias.name:<{width}}  {alias.bundle}" for alias in aliases)
    print_result(arguments.json, {"aliases": facts}, rows or "no aliases")
    return 0


def _gc(arguments: argparse.Namespace) -> int:
    from collage.cost.batches import compact
    from collage.store import open_store
    from collage.store.gc import Retention, collect_garbage

    store = open_store(arguments.store, writes=False, must_exist=True)
    retention = Retention(**dict(arguments.keep))
    sweep = collect_garbage(
        store, arguments.older_than, dry_run=not arguments.delete, retention=retention
    )
    merged = 0
    if arguments.delete:
        merged = compact(store, arguments.older_than, keep_s=retention.costs)
    verb = "would delete" if sweep.dry_run else "deleted"
    lines = [f"{verb} {entry.key}  {entry.size_bytes} bytes" for entry in sweep.deleted]
    lines += [f"{verb} {key}" for key in sweep.partial]
    lines.append(
        f"{verb} {len(sweep.deleted)} objects, {sweep.bytes_deleted / (1 << 20):.1f} MiB, and "
        f"{len(sweep.partial)} unfinished writes; {sweep.bundles} bundles use {sweep.kept_blobs} objects"
    )
    if sweep.dry_run and (sweep.deleted or sweep.partial):
        lines.append("nothing was deleted: add --delete")
    lines += [f"restored {key}: it is referenced again" for key in sweep.restored]
    lines += [f"kept {key}: a retention rule of the storage keeps it" for key in sweep.retained]
    if merged:
        lines.append(f"merged {merged + 1} batches of costs")
    facts = {
        "dry_run": sweep.dry_run, "deleted": [entry.key for entry in sweep.deleted],
        "bytes": sweep.bytes_deleted, "partial": list(sweep.partial), "kept": sweep.kept_blobs,
        "bundles": sweep.bundles, "cost_batches_merged": merged, "restored": list(sweep.restored),
        "retained": list(sweep.retained),
    }  # fmt: skip
    print_result(arguments.json, facts, "\n".join(lines))
    return 0
