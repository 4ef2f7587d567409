"""The commands that work on a store: publish, fetch, alias, aliases, gc."""

import argparse
from pathlib import Path

from collage.cli_base import command, duration, say

STORE_HELP = "a folder, or s3://bucket/prefix?endpoint=...&addressing=path"


def add_store_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the commands to the parser."""
    publish = command(commands, "publish", _publish, "copy a bundle to a store")
    publish.add_argument("bundle", type=Path)
    publish.add_argument("store", help=STORE_HELP)
    publish.add_argument(
        "--alias", action="append", default=[], metavar="NAME",
        help="let NAME (e.g. ocr/production) stand for it; may be repeated",
    )  # fmt: skip
    fetch = command(commands, "fetch", _fetch, "copy a bundle from a store")
    fetch.add_argument("store", help=STORE_HELP)
    fetch.add_argument("name", help="an alias, or a bundle's digest")
    fetch.add_argument("-o", "--output", type=Path, required=True, metavar="DIR")
    alias = command(commands, "alias", _alias, "let a name stand for a published bundle")
    alias.add_argument("store", help=STORE_HELP)
    alias.add_argument("name")
    alias.add_argument("bundle", help="its digest, or another alias")
    alias.add_argument("--expect", metavar="DIGEST", help="only if NAME stands for this one now")
    aliases = command(commands, "aliases", _aliases, "list the names and their bundles")
    aliases.add_argument("store", help=STORE_HELP)
    gc = command(commands, "gc", _gc, "delete what no bundle in the store reaches; says what first")
    gc.add_argument("store", help=STORE_HELP)
    gc.add_argument("--delete", action="store_true", help="without it nothing is deleted")
    gc.add_argument(
        "--older-than", type=duration, default="24h", metavar="24h|7d",
        help="keep what is younger (default 24h): publishers may be about to use it",
    )  # fmt: skip
    for parser in (publish, fetch, alias, aliases, gc):
        parser.add_argument("--json", action="store_true")


def _publish(arguments: argparse.Namespace) -> int:
    from collage.store import open_store
    from collage.store.bundles import publish_bundle

    made = publish_bundle(open_store(arguments.store), arguments.bundle, arguments.alias)
    moves = [
        f"{name} {'now stands' if name in made.moved else 'stood already'} for it"
        for name in arguments.alias
    ]
    facts = {"bundle": made.digest, "moved": list(made.moved)}
    say(arguments.json, facts, "\n".join([made.digest, *moves]))
    return 0


def _fetch(arguments: argparse.Namespace) -> int:
    from collage.store import open_store
    from collage.store.bundles import fetch_bundle

    store = open_store(arguments.store, writes=False)
    digest = fetch_bundle(store, arguments.name, arguments.output)
    say(arguments.json, {"bundle": digest, "folder": str(arguments.output)}, str(arguments.output))
    return 0


def _alias(arguments: argparse.Namespace) -> int:
    from collage.store import open_store
    from collage.store.aliases import move_alias
    from collage.store.bundles import find_bundle, read_bundle

    store = open_store(arguments.store)
    digest = find_bundle(store, arguments.bundle)
    read_bundle(store, digest)
    moved = move_alias(store, arguments.name, digest, arguments.expect)
    facts = {"alias": arguments.name, "bundle": digest, "moved": moved}
    say(arguments.json, facts, f"{arguments.name}  {digest}{'' if moved else '  (as before)'}")
    return 0


def _aliases(arguments: argparse.Namespace) -> int:
    from collage.store import open_store
    from collage.store.aliases import list_aliases

    found = list(list_aliases(open_store(arguments.store, writes=False)))
    facts = [{"alias": one.name, "bundle": one.bundle, "previous": one.previous} for one in found]
    width = max((len(one.name) for one in found), default=0)
    rows = "\n".join(f"{one.name:<{width}}  {one.bundle}" for one in found)
    say(arguments.json, {"aliases": facts}, rows or "no aliases")
    return 0


def _gc(arguments: argparse.Namespace) -> int:
    from collage.cost.batches import compact
    from collage.store import open_store
    from collage.store.gc import collect_garbage

    store = open_store(arguments.store, writes=False)
    sweep = collect_garbage(store, arguments.older_than, dry_run=not arguments.delete)
    merged = compact(store, arguments.older_than) if arguments.delete else 0
    verb = "would delete" if sweep.dry_run else "deleted"
    lines = [f"{verb} {one.key}  {one.size_bytes} bytes" for one in sweep.deleted]
    lines += [f"{verb} {one}" for one in sweep.partial]
    lines.append(
        f"{verb} {len(sweep.deleted)} objects, {sweep.bytes_deleted / (1 << 20):.1f} MiB, and "
        f"{len(sweep.partial)} unfinished writes; {sweep.bundles} bundles keep {sweep.kept} objects"
    )
    if sweep.dry_run and (sweep.deleted or sweep.partial):
        lines.append("nothing was deleted: add --delete to do it")
    if merged:
        lines.append(f"merged {merged + 1} batches of costs")
    facts = {
        "dry_run": sweep.dry_run, "deleted": [one.key for one in sweep.deleted],
        "bytes": sweep.bytes_deleted, "partial": list(sweep.partial), "kept": sweep.kept,
        "bundles": sweep.bundles, "cost_batches_merged": merged,
    }  # fmt: skip
    say(arguments.json, facts, "\n".join(lines))
    return 0
