"""The compile of a Relax module: its public functions become ONNX files, the entries of one bundle.

Each file is proven to compute what TVM alone computes from the function, and the ordinary compile follows.
Device annotations (`vdevice`) restrict it: a value's device is the target of the compile, and a backend that
would compute on another device has no candidates. A bundle's function runs on one device, so annotations
with another one are an error.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from collage.backends.registry import available_backends, known_backends
from collage.entries import ModelEntry, find_entries
from collage.errors import ModelError, OptionError
from collage.frontend.relax_module import FlatFunction, flat_functions
from collage.frontend.relax_proof import prove_translation
from collage.frontend.relax_to_onnx import translate, write_model
from collage.options import Options
from collage.pipeline.compile import compile_model
from collage.report.summary import Summary

if TYPE_CHECKING:
    from tvm import IRModule

    from collage.backends.base import Backend


def compile_module(module: "IRModule", options: Options, output: Path) -> Summary:
    """Compile the public functions of a Relax module into the bundle folder `output`.

    Raises:
        ModelError: a function has no ONNX form, or annotations name another device than the target.
        CollageError: see `compile_model`; nothing is written then.
    """
    with tempfile.TemporaryDirectory(prefix="collage-") as folder:
        entries, pinned_options = module_entries(module, options, Path(folder))
        return compile_model(entries, pinned_options, output)


def module_entries(
    module: "IRModule", options: Options, folder: Path
) -> tuple[tuple[ModelEntry, ...], Options]:
    """Write the public functions of a Relax module as ONNX files into `folder`.

    Returns:
        The entries, called as the functions, and `options` with the backends that annotations allow.

    Raises:
        ModelError: a function has no ONNX form, or annotations name another device than the target.
        OptionError: a function's name cannot name an entry, or no backend computes on the device.
    """
    functions = flat_functions(module)
    entries = find_entries({flat.name: folder / f"{flat.name}.onnx" for flat in functions})
    require_target(functions, options.device)
    if any(flat.pins for flat in functions):
        options = replace(options, backends=backends_on_device(options))
    for flat, entry in zip(functions, entries, strict=True):
        translated = translate(flat)
        write_model(translated, entry.path)
        prove_translation(translated, entry.path)
    return entries, options


def require_target(functions: Sequence[FlatFunction], device: str) -> None:
    """Check that annotations name the memory of the target's first device only.

    Raises:
        ModelError: an annotation names another device, number of a device, or scope of memory.
    """
    for flat in functions:
        for pin, name in sorted(flat.pins.items()):
            if (pin.device, pin.index, pin.memory_scope) != (device, 0, "global"):
                raise ModelError(
                    f"the Relax function {flat.name} pins {name} to {pin}, and the compile is for "
                    f"{device}:0:global; remove the annotation, or compile for one device with "
                    "Options(device=...)"
                )


def backends_on_device(options: Options) -> "tuple[str | Backend, ...] | None":
    """Return the chosen backends, or all available ones, that compute on the target itself.

    Raises:
        OptionError: no chosen backend does, or one is unknown.
    """
    chosen = options.backends
    if chosen is None:
        backends = available_backends(None, options.device)
        if not any(backend.computes_on_host for backend in backends):
            return None
        return tuple(backend.name for backend in backends if not backend.computes_on_host)
    pairs = zip(chosen, known_backends(chosen, options.device), strict=True)
    allowed = tuple(choice for choice, backend in pairs if not backend.computes_on_host)
    if not allowed:
        raise OptionError(
            f"the Relax module pins values to {options.device}, where none of the chosen backends computes; "
            "choose others"
        )
    return allowed
