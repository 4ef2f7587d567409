"""Collage: for every sub-graph of an ONNX model, the toolchain that measures fastest.

collage.compile("model.onnx", collage.Options(), output="bundle")   # needs the `compile` extra
collage.load("bundle").run({"x": array})                            # needs the `runtime` extra
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from collage.telemetry import turn_telemetry_off

turn_telemetry_off()  # before anything is imported that would report

from collage.options import Options  # noqa: E402

if TYPE_CHECKING:
    from collage.report.data import Summary
    from collage.runtime.loader import LoadedBundle

__version__ = "0.1.0"
__all__ = ["Options", "compile", "load"]


def compile(
    model: str | os.PathLike[str],
    options: Options | None = None,
    *,
    output: str | os.PathLike[str],
) -> "Summary":
    """Compile the ONNX file `model` into the bundle folder `output` and return what was found.

    Raises:
        CollageError: see `collage.errors`; nothing is published then.
    """
    from collage.pipeline import compile_model

    return compile_model(Path(model), options or Options(), Path(output))


def load(
    bundle: str | os.PathLike[str],
    verify_keys: Sequence[str | os.PathLike[str]] = (),
    *,
    warm: bool = False,
) -> "LoadedBundle":
    """Load a bundle for serving; needs neither a compiler nor onnx nor a network.

    Args:
        bundle: its folder.
        verify_keys: files or folders of public keys, one of which must have signed the bundle; without
            any, those that COLLAGE_VERIFY_KEYS names.
        warm: whether the original model, which answers other shapes, opens now; default False: at the
            first call that needs it.

    Raises:
        BundleError: incomplete, changed, not signed by such a key, or made for another processor or
            library version.
    """
    from collage.runtime.loader import load as load_bundle

    return load_bundle(Path(bundle), [Path(key) for key in verify_keys], warm=warm)
