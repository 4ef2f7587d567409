"""The command line: one module for each group of commands."""

from collage.cli.commands import main

__all__ = ["main"]
