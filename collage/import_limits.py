"""Resource limits for reading a foreign model, and the variables for larger limits.

The sender of a model must not choose these limits, so they are no option of a compile: the environment of
the reading process sets them, on a laptop and in a cluster.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from collage.errors import OptionError

MEMORY: Final = "COLLAGE_IMPORT_MEMORY"
SECONDS: Final = "COLLAGE_IMPORT_SECONDS"
NODES: Final = "COLLAGE_IMPORT_NODES"
VARIABLES: Final = frozenset({MEMORY, SECONDS, NODES})

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMG]?|[KMG]IB)")
MEMORY_FACTOR = 10
"""Copies of the weights during import: read, parsed, folded, widened, and written again."""
SECONDS_PER_GIB = 60.0


@dataclass(frozen=True)
class ImportLimits:
    """Limits of the process for reading a model.

    Attributes:
        memory_bytes: private memory in bytes, in addition to `MEMORY_FACTOR` times the size of the files.
        cpu_s: processor time in seconds, in addition to `SECONDS_PER_GIB` for each GiB of files.
        nodes: number of nodes after the expansion of functions.
    """

    memory_bytes: int = 3 << 29
    cpu_s: float = 45.0
    nodes: int = 100_000

    def memory_of(self, file_bytes: int) -> int:
        """Limit of private memory for a model in files of this size, in bytes."""
        return self.memory_bytes + MEMORY_FACTOR * file_bytes

    def cpu_of(self, file_bytes: int) -> float:
        """Limit of processor time for a model in files of this size, in seconds."""
        return self.cpu_s + SECONDS_PER_GIB * file_bytes / (1 << 30)


def import_limits(environ: Mapping[str, str] | None = None) -> ImportLimits:
    """Return the limits that the environment sets. Raises OptionError for a value that is none."""
    variables = os.environ if environ is None else environ
    defaults = ImportLimits()
    return ImportLimits(
        memory_bytes=_bytes(variables.get(MEMORY, "")) or defaults.memory_bytes,
        cpu_s=_number(SECONDS, variables.get(SECONDS, "")) or defaults.cpu_s,
        nodes=int(_number(NODES, variables.get(NODES, ""))) or defaults.nodes,
    )


def _bytes(text: str) -> int:
    if not text:
        return 0
    parts = _SIZE.fullmatch(text.upper())
    size_bytes = int(float(parts[1]) * _UNITS[parts[2]]) if parts else 0
    if size_bytes < 1 << 20:
        raise OptionError(f"{MEMORY}={text} is no size of at least 1MiB; write 4GiB or 512MiB")
    return size_bytes


def _number(name: str, text: str) -> float:
    if not text:
        return 0.0
    if not re.fullmatch(r"[1-9]\d{0,8}", text):
        raise OptionError(f"{name}={text} is no whole number of at least 1")
    return float(text)
