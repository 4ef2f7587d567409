"""Atomic writing of a bundle: a crash, a full disk or a kill leaves no partial bundle.

All files go into a hidden sibling folder, the manifest last; then one rename replaces the old bundle.
Readers find the old bundle, the new one, or none.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from collage.bundle.manifest import EXECUTABLE, ManifestDocument
from collage.errors import BundleError
from collage.runtime.arrays import save_arrays
from collage.runtime.loader import DEFAULTS, GOLDEN
from collage.store.atomic_folder import check_output, replace_folder, write_durably
from collage.store.blobs import digest_of
from collage.store.scratch import scratch_folder

ISA_PREFIXES = (
    "avx",
    "sse",
    "ssse",
    "fma",
    "bmi",
    "f16c",
    "popcnt",
    "amx",
    "vaes",
    "gfni",
    "lzcnt",
)


def save_bundle(
    output: Path,
    executable: Path | None,
    generated_files: Mapping[str, str],
    *,
    golden: Mapping[str, np.ndarray],
    manifest: Callable[[dict[str, str]], ManifestDocument],
    model_files: Sequence[Path] = (),
    defaults: Mapping[str, np.ndarray] = {},
) -> ManifestDocument:
    """Publish a bundle as the folder `output`.

    Args:
        output: folder to create or replace; any content other than a bundle is refused.
        executable: shared library, copied as `model.so`; None for a bundle without.
        generated_files: contents of generated files by name (plan.json, report.html).
        golden: arrays by `function/input/NAME` and `function/output/NAME`.
        manifest: function from the digests of all files to the manifest.
        model_files: files of the original model, copied by their names; default none.
        defaults: values of inputs that callers may leave out, by `ENTRY/NAME`; default none.

    Raises:
        BundleError: the folder cannot be written; the old content is untouched.
    """
    check_output(output)
    try:
        with scratch_folder(output.parent, f".{output.name}.partial-") as scratch:
            partial = scratch / "new"
            partial.mkdir()
            if executable is not None:
                shutil.copyfile(executable, partial / EXECUTABLE)
            for file in model_files:
                shutil.copyfile(file, partial / file.name)
            save_arrays(partial / GOLDEN, golden)
            if defaults:
                save_arrays(partial / DEFAULTS, defaults)
            for name, text in generated_files.items():
                (partial / name).write_text(text)
            digests: dict[str, str] = {
                file.name: digest_of(file) for file in sorted(partial.iterdir())
            }
            document = manifest(digests)
            write_durably(partial / "manifest.json", document.model_dump_json(indent=1).encode())
            replace_folder(partial, output, scratch)
    except OSError as error:
        raise BundleError(
            f"the bundle could not be written to {output}: {error.strerror}. Free space or choose "
            "another folder with --output; measured costs are stored, so a second run is fast."
        ) from error
    return document


def cpu_features() -> tuple[str, tuple[str, ...]]:
    """Return model name and instruction-set flags of this machine's processor."""
    model, flags = "unknown", set()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            model = value.strip()
        elif key.strip() == "flags":
            flags = {flag for flag in value.split() if flag.startswith(ISA_PREFIXES)}
            break
    return model, tuple(sorted(flags))
