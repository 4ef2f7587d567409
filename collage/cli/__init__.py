"""The command line: one module for each group of commands."""

from collage.cli.command_line import main

__all__ = ["main"]
