"""MLflow's `input_example` of a model as one sample set.

`log_model(..., input_example=...)` writes `serving_input_example.json` beside the model:

    {"inputs": {"x": [[...]], ...}}                            arrays by input name
    {"inputs": [[...]]}                                        one array: that of a lone input
    {"dataframe_split": {"columns": [...], "data": [...]}}     a table: one input for each column

JSON keeps no types: arrays are converted to those of the model's inputs later, where no value is lost.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from collage.errors import ModelError

EXAMPLE = "serving_input_example.json"
_FILE = "collage-input-example.npz"
MAX_EXAMPLE_BYTES = 256 << 20


def example_files(folder: Path, label: object) -> Iterator[Path]:
    """Yield the .npz file of the example in a version's folder; nothing where there is none.

    Args:
        folder: folder of the version's files; the .npz file is written into it.
        label: the version, for messages.

    Raises:
        ModelError: the example holds no arrays.
    """
    file = folder / EXAMPLE
    if not file.is_file():
        return
    try:
        if file.stat().st_size > MAX_EXAMPLE_BYTES:
            raise ValueError(f"it has more than {MAX_EXAMPLE_BYTES >> 20} MiB")
        arrays = _arrays(json.loads(file.read_bytes()))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelError(
            f"the input_example of {label} holds no arrays ({type(error).__name__}: {error}); log the "
            "version with a mapping of arrays by input name, or set its tag collage.samples to the path "
            'of .npz files, or to "none" for generated inputs'
        ) from error
    np.savez(folder / _FILE, **arrays)  # type: ignore[arg-type]
    yield folder / _FILE


def _arrays(example: Any) -> dict[str, np.ndarray]:
    if "dataframe_split" in example:
        table = example["dataframe_split"]
        columns = zip(table["columns"], zip(*table["data"], strict=True), strict=True)
        values: Mapping[str, Any] = {str(name): column for name, column in columns}
    else:
        inputs = example["inputs"]
        values = inputs if isinstance(inputs, dict) else {"arr_0": inputs}
    arrays = {name: np.asarray(value) for name, value in values.items()}
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf":
            raise ValueError(f"{name} is no array of numbers")
    return arrays
