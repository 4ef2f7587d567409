"""The command `register`: add a model to a file registry."""

import argparse
from pathlib import Path

from collage.cli.arguments import Commands, add_command, print_result
from collage.errors import OptionError


def add_registry_commands(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = add_command(commands, "register", _register, "add a model version to a file registry")
    parser.add_argument("registry", help="a folder, or s3://bucket/prefix?endpoint=...")
    parser.add_argument("name", help="name of the model")
    parser.add_argument("version", help="version of the model")
    parser.add_argument("model", type=Path, help="ONNX file; its external data is added too")
    parser.add_argument("--samples", type=Path, action="append", default=[], metavar="FILE.npz",
                        help="real inputs of the model, one set a file")  # fmt: skip
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
    path: Path = arguments.model
    with open_model(path) as model:
        files = {name: file.path for name, file in model.external.items()}
        files |= {MODEL: model.own.path, **_sample_files(arguments.samples)}
        version = registry.add(arguments.name, arguments.version, files)
    if arguments.alias:
        registry.set_alias(version, arguments.alias)
    facts = {"name": version.name, "version": version.version, "alias": arguments.alias}
    alias_text = f", {arguments.alias}" if arguments.alias else ""
    print_result(arguments.json, facts, f"{version.name} version {version.version}{alias_text}")
    return 0


def _sample_files(samples: list[Path]) -> dict[str, Path]:
    """Return the sample files by their names in the registry. Raises OptionError for any other file."""
    from collage.frontend.sample_files import read_set

    for file in samples:
        read_set(file)
    return {f"samples-{number:03d}.npz": file for number, file in enumerate(samples)}
