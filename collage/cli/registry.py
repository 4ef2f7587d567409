"""The command `register`: add a model to a file registry."""

import argparse
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from collage.cli.arguments import Commands, add_command, print_result
from collage.entries import find_entries
from collage.errors import OptionError
from collage.runtime.function_names import MAIN


def add_registry_commands(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = add_command(commands, "register", _register, "add a model version to a file registry")
    parser.add_argument("registry", help="a folder, or s3://bucket/prefix?endpoint=...")
    parser.add_argument("name", help="name of the model")
    parser.add_argument("version", help="version of the model")
    parser.add_argument("model", nargs="+", metavar="MODEL",
                        help="ONNX file, or several for the entries of one bundle (NAME=FILE names one); "
                        "their external data is added too")  # fmt: skip
    parser.add_argument("--samples", type=Path, action="append", default=[], metavar="FILE.npz",
                        help="real inputs of the model, one set a file")  # fmt: skip
    parser.add_argument("--options", type=Path, metavar="FILE",
                        help="options of the version, JSON or YAML; only with this, a repeated call "
                        "replaces them")  # fmt: skip
    parser.add_argument(
        "--alias", default="candidate", metavar="NAME",
        help="alias of the version (default candidate: queued for optimization); '' sets none",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def _register(arguments: argparse.Namespace) -> int:
    from collage.frontend.model_files import open_model
    from collage.registry.files import MODEL, FileRegistry
    from collage.registry.open import open_registry

    registry = open_registry(arguments.registry)
    if not isinstance(registry, FileRegistry):
        raise OptionError(
            f"{arguments.registry} is an MLflow server: register with MLflow's own tools"
        )
    entries = find_entries(arguments.model)
    options = _version_options(arguments.options) if arguments.options else None
    with ExitStack() as stack:
        files = _sample_files(arguments.samples)
        for entry in entries:
            model = stack.enter_context(open_model(entry.path))
            name = MODEL if entry.name == MAIN else f"{entry.name}.onnx"
            _add_files(files, {name: model.own.path})
            _add_files(files, {name: file.path for name, file in model.external.items()})
        version = registry.add(arguments.name, arguments.version, files)
    if options is not None:
        registry.set_options(version, options)
    if arguments.alias:
        registry.set_alias(version, arguments.alias)
    facts = {"name": version.name, "version": version.version, "alias": arguments.alias}
    alias_text = f", {arguments.alias}" if arguments.alias else ""
    print_result(arguments.json, facts, f"{version.name} version {version.version}{alias_text}")
    return 0


def _version_options(file: Path) -> dict[str, Any]:
    """Return the options of a file. Raises OptionError where a version cannot have them."""
    from collage.pipeline.version_options import options_mapping, parse_version_options

    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"{file} cannot be read: {error}") from error
    parse_version_options(text, str(file))
    return options_mapping(text, str(file))


def _add_files(files: dict[str, Path], added: Mapping[str, Path]) -> None:
    """Add files by name. Raises OptionError where two entries have different files of one name."""
    for name, path in added.items():
        if files.setdefault(name, path).resolve() != path.resolve():
            raise OptionError(
                f"the models have two files called {name}, {files[name]} and {path}: a version is one "
                "folder; export one of them with another name of its external data"
            )


def _sample_files(samples: list[Path]) -> dict[str, Path]:
    """Return the sample files by their names in the registry. Raises OptionError for any other file."""
    from collage.frontend.sample_files import read_set

    for file in samples:
        read_set(file)
    return {f"samples-{number:03d}.npz": file for number, file in enumerate(samples)}
