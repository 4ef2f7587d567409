"""The commands that work on a store: publish, unpublish, fetch, alias, unalias, aliases, gc."""

import argparse
from pathlib import Path
from typing import TypeAlias

from collage.cli.arguments import command, duration, say
from collage.cli.signing import (
    add_model_options,
    add_sign_options,
    add_verify_options,
    alias_signing,
    bundle_signing,
    verification,
)
from collage.errors import OptionError

STORE_HELP = "a folder, or s3://bucket/prefix?endpoint=...&addressing=path"


Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_store_commands(commands: Commands) -> None:
    """Add the commands to the parser."""
    for parser in (
        *_publish_commands(commands),
        _fetch_command(commands),
        *_alias_commands(commands),
        _gc_command(commands),
    ):
        parser.add_argument("--json", action="store_true")


def _publish_commands(commands: Commands) -> tuple[argparse.ArgumentParser, ...]:
    publish = command(
        commands, "publish", _publish, "copy a bundle to a store; the gate must have passed"
    )
    publish.add_argument("bundle", type=Path)
    publish.add_argument("store", help=STORE_HELP)
    publish.add_argument(
        "--alias", action="append", default=[], metavar="NAME",
        help="let NAME (e.g. ocr/production) stand for it; may be repeated",
    )  # fmt: skip
    add_sign_options(publish)
    add_model_options(publish)
    unpublish = command(
        commands,
        "unpublish",
        _unpublish,
        "remove a bundle that no alias stands for; gc frees the space",
    )
    unpublish.add_argument("store", help=STORE_HELP)
    unpublish.add_argument("bundle", help="its digest")
    return publish, unpublish


def _fetch_command(commands: Commands) -> argparse.ArgumentParser:
    fetch = command(commands, "fetch", _fetch, "copy a bundle from a store: STORE --alias NAME DIR")
    fetch.add_argument("store", help=STORE_HELP)
    fetch.add_argument("words", nargs="*", metavar="NAME|DIR",
                       help="the name unless --alias is there, the folder unless -o is")  # fmt: skip
    fetch.add_argument(  # argparse gives the folder that follows a name to the option
        "--alias",
        nargs="+",
        default=[],
        metavar=("NAME", "DIR"),
        help="an alias, or a bundle's digest",
    )
    fetch.add_argument("-o", "--output", type=Path, metavar="DIR")
    fetch.add_argument(
        "--cache-dir", type=Path, help="where fetched files are kept (default: the user's cache)"
    )
    fetch.add_argument(
        "--no-cache", action="store_true", help="look for nothing there, keep nothing"
    )
    add_verify_options(fetch)
    return fetch


def _alias_commands(commands: Commands) -> tuple[argparse.ArgumentParser, ...]:
    alias = command(commands, "alias", _alias, "let a name stand for a published bundle")
    alias.add_argument("store", help=STORE_HELP)
    alias.add_argument("name")
    alias.add_argument("bundle", help="its digest, or another alias")
    alias.add_argument("--expect", metavar="DIGEST", help="only if NAME stands for this one now")
    add_sign_options(alias)
    unalias = command(commands, "unalias", _unalias, "let a name stand for nothing any more")
    unalias.add_argument("store", help=STORE_HELP)
    unalias.add_argument("name")
    unalias.add_argument("--expect", metavar="DIGEST", help="only if NAME stands for this one now")
    add_sign_options(unalias)
    aliases = command(commands, "aliases", _aliases, "list the names and their bundles")
    aliases.add_argument("store", help=STORE_HELP)
    return alias, unalias, aliases


def _gc_command(commands: Commands) -> argparse.ArgumentParser:
    gc = command(commands, "gc", _gc, "delete what no bundle in the store reaches; says what first")
    gc.add_argument("store", help=STORE_HELP)
    gc.add_argument("--delete", action="store_true", help="without it nothing is deleted")
    gc.add_argument(
        "--older-than", type=duration, default="24h", metavar="24h|7d",
        help="keep what is younger (default 24h): publishers may be about to use it",
    )  # fmt: skip
    gc.add_argument(
        "--keep", type=_retention, action="append", default=[], metavar="KIND=30d",
        help="how long records stay after they were written last: requests=30d, results=90d, "
        "searches=90d, costs=180d, shards=30d; may be repeated",
    )  # fmt: skip
    return gc


def _retention(text: str) -> tuple[str, float]:
    kind, _, age = text.partition("=")
    if kind not in ("requests", "results", "searches", "costs", "shards"):
        raise argparse.ArgumentTypeError(f"{text!r} names no kind of record")
    return kind, duration(age)


def _publish(arguments: argparse.Namespace) -> int:
    from collage.store import open_store
    from collage.store.bundles import publish_bundle

    signing = bundle_signing(arguments)
    store = open_store(arguments.store)
    made = publish_bundle(store, arguments.bundle, arguments.alias, signing)
    moves = [
        f"{name} {'now stands' if name in made.moved else 'stood already'} for it"
        for name in arguments.alias
    ]
    facts = {"bundle": made.digest, "moved": list(made.moved)}
    say(arguments.json, facts, "\n".join([made.digest, *moves]))
    return 0


def _unpublish(arguments: argparse.Namespace) -> int:
    from collage.store import open_store
    from collage.store.base import BlobDigest
    from collage.store.bundles import unpublish_bundle

    unpublish_bundle(open_store(arguments.store, writes=False), BlobDigest(arguments.bundle))
    text = f"{arguments.bundle} is no bundle any more; `collage gc` frees what only it used"
    say(arguments.json, {"unpublished": arguments.bundle}, text)
    return 0


def _fetch(arguments: argparse.Namespace) -> int:
    from collage.options import Options
    from collage.store import open_store
    from collage.store.bundles import fetch_bundle
    from collage.store.cache import BundleCache

    name, output = _fetch_words(arguments)
    folder = arguments.cache_dir or Options().store_dir / "fetched"
    checks = verification(arguments, folder / "seen-aliases")
    digest = fetch_bundle(
        open_store(arguments.store, writes=False),
        name,
        output,
        cache=None if arguments.no_cache else BundleCache(folder),
        verification=checks,
    )
    say(arguments.json, {"bundle": digest, "folder": str(output)}, str(output))
    return 0


def _fetch_words(arguments: argparse.Namespace) -> tuple[str, Path]:
    words = [*arguments.alias, *arguments.words]
    name = words.pop(0) if words else None
    output = arguments.output or (Path(words.pop(0)) if words else None)
    if name is None or output is None or words:
        raise OptionError(
            "fetch: write `collage fetch STORE --alias NAME DIR`, or STORE NAME -o DIR"
        )
    return name, output


def _alias(arguments: argparse.Namespace) -> int:
    from collage.options import Options
    from collage.store import open_store
    from collage.store.alias_counters import Verification
    from collage.store.bundle_aliases import assign_alias, find_bundle
    from collage.store.manifests import require_proven

    signing = alias_signing(arguments)
    store = open_store(arguments.store)
    seen = Options().store_dir / "fetched" / "seen-aliases"
    checks = Verification(signing.keys, seen) if signing else None
    digest = find_bundle(store, arguments.bundle, checks)
    require_proven(store, digest)
    moved = assign_alias(store, arguments.name, digest, arguments.expect, signing=signing)
    facts = {"alias": arguments.name, "bundle": digest, "moved": moved}
    say(arguments.json, facts, f"{arguments.name}  {digest}{'' if moved else '  (as before)'}")
    return 0


def _unalias(arguments: argparse.Namespace) -> int:
    from collage.store import open_store
    from collage.store.aliases import remove_alias

    signing, store = alias_signing(arguments), open_store(arguments.store)
    removed = remove_alias(store, arguments.name, arguments.expect, signing=signing)
    text = "stands for nothing now" if removed else "stood for nothing before"
    say(arguments.json, {"alias": arguments.name, "removed": removed}, f"{arguments.name} {text}")
    return 0


def _aliases(arguments: argparse.Namespace) -> int:
    from collage.store import open_store
    from collage.store.aliases import list_aliases

    found = list(list_aliases(open_store(arguments.store, writes=False, must_exist=True)))
    facts = [{"alias": one.name, "bundle": one.bundle, "previous": one.previous} for one in found]
    width = max((len(one.name) for one in found), default=0)
    rows = "\n".join(f"{one.name:<{width}}  {one.bundle}" for one in found)
    say(arguments.json, {"aliases": facts}, rows or "no aliases")
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
    lines = [f"{verb} {one.key}  {one.size_bytes} bytes" for one in sweep.deleted]
    lines += [f"{verb} {one}" for one in sweep.partial]
    lines.append(
        f"{verb} {len(sweep.deleted)} objects, {sweep.bytes_deleted / (1 << 20):.1f} MiB, and "
        f"{len(sweep.partial)} unfinished writes; {sweep.bundles} bundles keep {sweep.kept_blobs} objects"
    )
    if sweep.dry_run and (sweep.deleted or sweep.partial):
        lines.append("nothing was deleted: add --delete to do it")
    lines += [f"put back {key}, which is needed" for key in sweep.restored]
    if merged:
        lines.append(f"merged {merged + 1} batches of costs")
    facts = {
        "dry_run": sweep.dry_run, "deleted": [one.key for one in sweep.deleted],
        "bytes": sweep.bytes_deleted, "partial": list(sweep.partial), "kept": sweep.kept_blobs,
        "bundles": sweep.bundles, "cost_batches_merged": merged, "restored": list(sweep.restored),
    }  # fmt: skip
    say(arguments.json, facts, "\n".join(lines))
    return 0
