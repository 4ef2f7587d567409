"""Options of the commands that sign or verify, and what they mean."""

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
        help=f"private Ed25519 key (PEM) to sign with (default: {SIGN_KEY})",
    )  # fmt: skip


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add the name and version that a bundle is signed as."""
    parser.add_argument(
        "--model", metavar="NAME",
        help="the model that it is signed as; only aliases NAME and NAME/... may stand for it "
        "(default: what the first alias begins with, else the model's file)",
    )  # fmt: skip
    parser.add_argument(
        "--model-version", default="", metavar="V", help="in the registry; it is signed too"
    )


def add_verify_options(parser: argparse.ArgumentParser) -> None:
    """Add --verify-key."""
    parser.add_argument(
        "--verify-key", type=Path, action="append", default=[], metavar="FILE|DIR",
        help="refuse a bundle that no key in it signed: PEM, JSON trust file or a folder of them; may "
        "be repeated (default: COLLAGE_VERIFY_KEYS, separated by colons)",
    )  # fmt: skip


def alias_signing(arguments: argparse.Namespace) -> "AliasSigning | None":
    """How aliases are signed, or None without a key. Raises OptionError for a bad key."""
    from collage.runtime.signature import VARIABLE, named_sources
    from collage.store.aliases import AliasSigning

    return AliasSigning.configured(arguments.sign_key, named_sources(os.environ.get(VARIABLE, "")))


def bundle_signing(arguments: argparse.Namespace) -> "BundleSigning | None":
    """How a bundle is signed as a model, or None without a key. Raises OptionError for a bad key."""
    from collage.store.bundle_statements import BundleSigning
    from collage.store.statement import SignedModel, model_file

    aliases = alias_signing(arguments)
    if aliases is None:
        if arguments.model or arguments.model_version:
            raise OptionError(
                "--model and --model-version are what a signature says: add --sign-key"
            )
        return None
    first = arguments.alias[0].partition("/")[0] if arguments.alias else ""
    name = arguments.model or first or model_file(arguments.bundle)
    if not name:
        raise OptionError("the bundle does not say what its model is called: add --model NAME")
    return BundleSigning(aliases, SignedModel(name, arguments.model_version))


def verification(arguments: argparse.Namespace, seen: Path) -> "Verification | None":
    """What a fetch verifies with, or None, which is said, without a key.

    Args:
        seen: the folder that remembers the newest record of each alias.

    Raises:
        OptionError: a bad key.
    """
    from collage.runtime.signature import configured_keys
    from collage.store.alias_counters import Verification

    keys = configured_keys(arguments.verify_key)
    return None if keys is None else Verification(keys, seen)


def _from_environment() -> Path | None:
    found = os.environ.get(SIGN_KEY)
    return Path(found) if found else None
