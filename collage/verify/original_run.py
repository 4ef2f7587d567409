"""Run of an original model alone, in a child process: golden data, latency, repeatability.

A model with text, sequences or maps has no function to compare: its bundle runs the original file, whose
numbers are right by definition. So the child runs the session that serves (`OriginalSession`), with
limits, since this is the first run of a possibly hostile model.
"""

import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from collage.errors import InputError, ModelError
from collage.frontend.isolated_import import file_allowance
from collage.frontend.limited_process import Question, answer_limited, ask_limited
from collage.frontend.original_inputs import draw_values, typed_values
from collage.frontend.original_interface import read_interface
from collage.masking import mask_numbers
from collage.runtime.arrays import load_arrays, save_arrays
from collage.runtime.bundle_folder import BundleFolder
from collage.runtime.fallback import Fallback, ModelValue
from collage.runtime.function_names import fallback_name
from collage.runtime.golden_values import to_arrays
from collage.runtime.original_session import OriginalSession
from collage.store.blobs import digest_of

TIMED_S = 0.5
"""Time of the calls for the latency, in seconds."""
_GOLDEN, _VALUES = "original-golden.npz", "original-values.npz"


@dataclass(frozen=True)
class OriginalRun:
    """Results of the run.

    Attributes:
        golden: golden data by name in the bundle's file.
        latency_s: median of one call, in seconds.
        deterministic: whether two calls gave equal outputs.
    """

    golden: Mapping[str, np.ndarray]
    latency_s: float
    deterministic: bool


def run_original(
    files: Sequence[Path],
    shapes: Mapping[str, tuple[int, ...]],
    seed: int,
    *,
    values: Mapping[str, np.ndarray],
    threads: int,
    work_dir: Path,
) -> OriginalRun:
    """Run the model in ONNX Runtime on the user's values, and on drawn inputs beside them.

    Args:
        files: the ONNX file and its external data, in one folder.
        shapes: shapes of inputs, by name; other open dimensions are 1.
        seed: seed of the drawn inputs.
        values: values of tensors by input name.
        threads: number of threads.
        work_dir: folder for the results.

    Raises:
        ModelError: ONNX Runtime cannot run it, or not within the limits.
        DimensionError: a shape is not one of the model's.
    """
    question = {
        "files": [os.path.abspath(file) for file in files],
        "shapes": {name: list(shape) for name, shape in shapes.items()},
        "seed": seed,
        "threads": threads,
        "folder": os.path.abspath(work_dir),
    }
    save_arrays(work_dir / _VALUES, values)
    answer = ask_limited(__name__, question, file_allowance(files[0]), files[0], folder=work_dir)
    golden = load_arrays(work_dir / _GOLDEN)
    return OriginalRun(golden, float(answer["latency_s"]), bool(answer["deterministic"]))


def _answer(question: Question) -> Mapping[str, Any]:
    """Run the model, in the child."""
    file, *weights = (Path(name) for name in question["files"])
    interface = read_interface(file)
    fallback = Fallback(
        "onnxruntime",
        file.name,
        interface.inputs,
        interface.outputs,
        weights=weights[0].name if weights else "",
    )
    shapes = {name: tuple(shape) for name, shape in question["shapes"].items()}
    values = load_arrays(Path(question["folder"]) / _VALUES)
    inputs = {
        **draw_values(interface.inputs, shapes, question["seed"]),
        **typed_values(interface.inputs, values),
    }
    folder = BundleFolder(file.parent)
    verified = {
        name: folder.open_verified(name, digest_of(file.parent / name)) for name in fallback.files
    }
    session = OriginalSession(fallback, verified, question["threads"])
    try:
        first, second = (_arrays("output", fallback.outputs, session.run(inputs)) for _ in range(2))
    except InputError as error:
        source = "the samples" if values else "generated inputs"
        reason = mask_numbers(str(error)) if values else str(error)
        raise ModelError(
            f"{file}: ONNX Runtime cannot run the model on {source}: {reason}; give inputs that it accepts "
            "with --samples or --input"
        ) from error
    golden = _arrays("input", fallback.inputs, inputs) | first
    save_arrays(Path(question["folder"]) / _GOLDEN, golden)
    return {"latency_s": _latency_s(session, inputs), "deterministic": _are_equal(first, second)}


def _arrays(
    side: str, declared: Sequence[ModelValue], values: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    return {
        f"{fallback_name()}/{side}/{name}": array
        for value in declared
        for name, array in to_arrays(value.name, values.get(value.name), value.type).items()
    }


def _are_equal(first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]) -> bool:
    return first.keys() == second.keys() and all(
        array.shape == second[name].shape and array.tobytes() == second[name].tobytes()
        for name, array in first.items()
    )


def _latency_s(session: OriginalSession, inputs: Mapping[str, object]) -> float:
    samples: list[float] = []
    end = time.perf_counter() + TIMED_S
    while not samples or time.perf_counter() < end:
        start = time.perf_counter_ns()
        session.run(inputs)
        samples.append((time.perf_counter_ns() - start) * 1e-9)
    return statistics.median(samples)


if __name__ == "__main__":
    answer_limited(_answer)
