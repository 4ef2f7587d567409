"""Collage: for every sub-graph of an ONNX model, the toolchain that measures fastest.

collage.compile("model.onnx", collage.Options(), output="bundle")   # needs the `compile` extra
collage.load("bundle").run({"x": array})                            # needs the `runtime` extra
collage.InferenceSession("bundle").run(None, {"x": array})          # the same, as ONNX Runtime has it
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from collage.telemetry import turn_telemetry_off

turn_telemetry_off()  # before anything is imported that would report

from collage.errors import OptionError  # noqa: E402
from collage.options import Options  # noqa: E402

if TYPE_CHECKING:
    from tvm import IRModule

    from collage.entries import ModelPaths
    from collage.report.summary import Summary
    from collage.runtime.inference_session import InferenceSession
    from collage.runtime.loader import LoadedBundle

__version__ = "0.1.0"
__all__ = ["InferenceSession", "Options", "compile", "load"]


def __getattr__(name: str) -> object:
    if name != "InferenceSession":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from collage.runtime.inference_session import InferenceSession

    return InferenceSession


def compile(
    models: "ModelPaths | IRModule",
    options: Options | None = None,
    *,
    output: str | os.PathLike[str],
) -> "Summary":
    """Compile an ONNX file, or several as the entries of one bundle, into the bundle folder `output`.

    Args:
        models: ONNX file; or a folder of such files, or several files ("NAME=PATH" names an entry), or
            files by the names of their entries; or a Relax module, whose public functions are entries.
        options: options of the compile; None: the defaults.
        output: folder to create or replace.

    Returns:
        The summary of the compile.

    Raises:
        CollageError: see `collage.errors`; nothing is published then.
    """
    from collage.entries import find_entries, is_relax_module
    from collage.pipeline import compile_model, compile_module

    if is_relax_module(models):
        return compile_module(models, options or Options(), Path(output))
    return compile_model(find_entries(models), options or Options(), Path(output))


def load(
    bundle: str | os.PathLike[str],
    verify_keys: Sequence[str | os.PathLike[str]] = (),
    *,
    alias: str | None = None,
    warm: bool = False,
) -> "LoadedBundle":
    """Load a bundle for serving; needs neither a compiler nor onnx, and a network only for a store.

    Args:
        bundle: its folder; or with `alias` the address of a store, e.g. "s3://bucket/prefix" (the extra
            `s3`).
        verify_keys: files or folders of public keys, one of which must have signed the bundle; without
            any, those that COLLAGE_VERIFY_KEYS names.
        alias: alias of a published bundle, or its digest; None: `bundle` is a folder.
        warm: whether the original model, which answers other shapes, opens now; default False: at the
            first call that needs it.

    Raises:
        BundleError: incomplete, changed, not signed by such a key, or made for another processor or
            library version.
        StoreError: the store does not answer, or has no such bundle.
        OptionError: an address or a key that cannot be read, or an address without `alias`.
    """
    keys = [Path(key) for key in verify_keys]
    if alias is not None:
        from collage.store.load_bundle import load_published

        cache_dir = Options().store_dir / "fetched"
        return load_published(os.fspath(bundle), alias, keys, cache_dir=cache_dir, warm=warm)
    if "://" in os.fspath(bundle):
        raise OptionError(
            f"{os.fspath(bundle)} is the address of a store; name the bundle in it, as in "
            "alias='ocr/production'"
        )
    from collage.runtime.loader import load as load_bundle

    return load_bundle(Path(bundle), keys, warm=warm)
