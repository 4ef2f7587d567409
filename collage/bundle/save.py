"""Write a bundle so that a crash, a full disk or a kill never leaves half of one behind.

Everything goes into a hidden sibling folder first, the manifest last; then the folder takes the
place of the old bundle in one rename. Whoever reads finds the old bundle, the new one, or none.
"""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from collage.bundle.manifest import Manifest
from collage.errors import BundleError
from collage.runtime.arrays import save_arrays
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
    executable: Path,
    texts: Mapping[str, str],
    golden: Mapping[str, np.ndarray],
    manifest: Callable[[dict[str, str]], Manifest],
) -> Manifest:
    """Publish a bundle as the folder `output`.

    Args:
        output: the folder to make or replace; anything there that is no bundle is refused.
        executable: the shared library, moved in as `model.so`.
        texts: further files by name (plan.json, report.html).
        golden: `function/input/NAME` and `function/output/NAME` to arrays.
        manifest: makes the manifest from the digests of all files.

    Raises:
        BundleError: the folder cannot be written; the old content is untouched.
    """
    check_output(output)
    try:
        with scratch_folder(output.parent, f".{output.name}.partial-") as scratch:
            partial = scratch / "new"
            partial.mkdir()
            shutil.copyfile(executable, partial / "model.so")
            save_arrays(partial / "golden.npz", golden)
            for name, text in texts.items():
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
            "another folder with --output; what was measured is kept, so a second run is fast."
        ) from error
    return document


def cpu_features() -> tuple[str, tuple[str, ...]]:
    """Model name and instruction-set flags of this machine's processor."""
    model, flags = "unknown", set()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            model = value.strip()
        elif key.strip() == "flags":
            flags = {flag for flag in value.split() if flag.startswith(ISA_PREFIXES)}
            break
    return model, tuple(sorted(flags))
