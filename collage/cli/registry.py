"""The command that works on a registry of files: register."""

import argparse
from pathlib import Path

from collage.cli.arguments import command, say


def add_registry_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = command(commands, "register", _register, "add a model to a registry of files")
    parser.add_argument("registry", help="a folder, or s3://bucket/prefix?endpoint=...")
    parser.add_argument("name", help="of the model")
    parser.add_argument("version")
    parser.add_argument("model", type=Path, help="the ONNX file; its external data goes with it")
    parser.add_argument(
        "--alias", default="candidate", metavar="NAME",
        help="alias to give it (default candidate: it will be optimized); '' gives none",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true")


def _register(arguments: argparse.Namespace) -> int:
    from collage.errors import OptionError
    from collage.frontend.model_files import open_model
    from collage.registry.files import MODEL, FileRegistry
    from collage.registry.open import open_registry

    registry = open_registry(arguments.registry)
    if not isinstance(registry, FileRegistry):
        raise OptionError(
            f"{arguments.registry} is an MLflow server: register with MLflow's own tools"
        )
    path: Path = arguments.model
    with open_model(path) as model:
        files = {name: file.path for name, file in model.external.items()}
        made = registry.add(arguments.name, arguments.version, {**files, MODEL: model.own.path})
    if arguments.alias:
        registry.set_alias(made, arguments.alias)
    facts = {"name": made.name, "version": made.version, "alias": arguments.alias}
    given = f", {arguments.alias}" if arguments.alias else ""
    say(arguments.json, facts, f"{made.name} version {made.version}{given}")
    return 0
