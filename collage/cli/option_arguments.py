"""Options of a compile on the command line, made from the declarations of `collage.options.Options`."""

import argparse
from collections.abc import Collection, Mapping
from dataclasses import Field, fields
from typing import Any

from collage.cli.arguments import add_models
from collage.option_declaration import declaration_of
from collage.options import Options

_FIELDS: Mapping[str, Field[Any]] = {
    option.name: option for option in fields(Options) if declaration_of(option).flag
}

OPTION_NAMES: Collection[str] = _FIELDS.keys()
"""Fields of `Options` that have a flag, in the order of the fields."""


def add_inspected_models(parser: argparse.ArgumentParser) -> None:
    """Add the models of a command that compiles nothing, and the options that bind their inputs."""
    add_models(parser)
    add_option(parser, "device")
    add_option(parser, "backends", "backend names (default: all backends of the device)")
    add_option(parser, "dims")
    add_option(parser, "shapes", "bind the shape of an input")
    add_option(parser, "samples", "real inputs, whose shapes are bound where no --shape is given")
    add_option(parser, "inputs")


def add_option(parser: argparse.ArgumentParser, name: str, help: str = "") -> None:
    """Add one option to a parser.

    Args:
        parser: parser of a command.
        name: name of a field of `Options`.
        help: help text of this command; "": the declared one.
    """
    option = _FIELDS[name]
    declaration = declaration_of(option)
    text = help or declaration.help.replace("{default}", str(option.default))
    settings: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS, "help": text}
    if option.type is bool:
        parser.add_argument(
            declaration.flag, action="store_const", const=not option.default, **settings
        )
        return
    if declaration.is_repeatable:
        settings["action"] = "append"
    else:
        settings["type"] = declaration.parse
    if declaration.choices:
        settings["choices"] = declaration.choices
    else:
        word = declaration.flag.lstrip("-").replace("-", "_").upper()
        settings["metavar"] = declaration.metavar or word
    parser.add_argument(declaration.flag, **settings)


def written_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the values of the options that stand on the command line, by field of `Options`.

    Raises:
        DimensionError: a value of --dim or --shape is invalid.
    """
    written = {name: value for name, value in vars(arguments).items() if name in _FIELDS}
    for name, value in written.items():
        declaration = declaration_of(_FIELDS[name])
        if declaration.is_repeatable:
            written[name] = declaration.parse(value)
    return written
