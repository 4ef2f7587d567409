"""The options --sign-key, --verify-key and --model of several commands."""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from collage.errors import OptionError

if TYPE_CHECKING:
    from collage.store.alias_counters import Verification
    from collage.store.aliases import AliasSigning
    from collage.store.bundle_statements import BundleSigning

SIGN_KEY = "COLLAGE_SIGN_KEY"


def add_sign_options(parser: argparse.ArgumentParser) -> None:
    """Add --sign-key."""
    parser.add_argument(
        "--sign-key", type=Path, metavar="FILE", default=_from_environment(),
        help=f"private Ed25519 key (PEM) for the signature (default: {SIGN_KEY})",
    )  # fmt: skip


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add --model and --model-version, the identity in a signature."""
    parser.add_argument(
        "--model", metavar="NAME",
        help="model name in the signature; only aliases NAME and NAME/... may point to the bundle "
        "(default: first part of the first alias, else name of the model's file)",
    )  # fmt: skip
    parser.add_argument(
        "--model-version", default="", metavar="V", help="registry version in the signature"
    )


def add_verify_options(parser: argparse.ArgumentParser) -> None:
    """Add --verify-key."""
    parser.add_argument(
        "--verify-key", type=Path, action="append", default=[], metavar="FILE|DIR",
        help="refuse bundles without a signature by one of these keys: PEM, JSON trust file or a "
        "directory of them; repeatable (default: COLLAGE_VERIFY_KEYS, separated by colons)",
    )  # fmt: skip


def alias_signing(arguments: argparse.Namespace) -> "AliasSigning | None":
    """Return the signing of aliases, or None without a key. Raises OptionError for a bad key."""
    from collage.runtime.signature import VARIABLE, named_sources
    from collage.store.aliases import AliasSigning

    return AliasSigning.configured(arguments.sign_key, named_sources(os.environ.get(VARIABLE, "")))


def bundle_signing(arguments: argparse.Namespace) -> "BundleSigning | None":
    """Return the signing of a bundle, or None without a key. Raises OptionError for a bad key."""
    from collage.store.bundle_statements import BundleSigning
    from collage.store.statement import SignedModel, model_file

    aliases = alias_signing(arguments)
    if aliases is None:
        if arguments.model or arguments.model_version:
            raise OptionError("--model and --model-version belong to a signature: add --sign-key")
        return None
    first = arguments.alias[0].partition("/")[0] if arguments.alias else ""
    name = arguments.model or first or model_file(arguments.bundle)
    if not name:
        raise OptionError("the bundle does not name its model: add --model NAME")
    return BundleSigning(aliases, SignedModel(name, arguments.model_version))


def verification(arguments: argparse.Namespace, alias_counters: Path) -> "Verification | None":
    """Return the verification of a fetch, or None, with a log line, without a key.

    Args:
        arguments: parsed arguments with --verify-key.
        alias_counters: folder with the newest record of each alias.

    Raises:
        OptionError: a bad key.
    """
    from collage.runtime.signature import configured_keys
    from collage.store.alias_counters import Verification

    keys = configured_keys(arguments.verify_key)
    return None if keys is None else Verification(keys, alias_counters)


def _from_environment() -> Path | None:
    path = os.environ.get(SIGN_KEY)
    return Path(path) if path else None
