"""Other shapes than the compiled ones: numbers, ways, dispatch time and memory.

    python -m benchmarks.shapes MODEL BUNDLE [--calls 1000] [--largest 40]
    python -m benchmarks.shapes --weight-heavy onnxruntime onednn,onnxruntime

MODEL has one input of integers with open dimensions (ids of tokens), BUNDLE is compiled from it, e.g. with

    collage compile tokens.onnx -o bundle --shape ids=1,16 --shape ids=1,32 --pad ids:1

Random shapes go to the bundle and to ONNX Runtime; every output is compared. Dispatch is timed with
stand-ins for the kernels, so that it is the only work. Memory is that of a process that keeps the bundle with
its fallback, and of one that keeps ONNX Runtime's session.

With --weight-heavy, a model of 48 MiB of weights (`benchmarks.weight_heavy`) is compiled for two shape sets
with each list of backends, and only memory is compared.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnxruntime

from benchmarks.weight_heavy import compile_products, product_model
from collage.runtime.dispatch import Dispatcher
from collage.runtime.loader import LoadedBundle, load
from collage.verify.footprint import bundle_footprint, onnxruntime_footprint

TIMED_CALLS = 5000
RELATIVE, ABSOLUTE = 1e-4, 1e-5


class _Instant:
    """A function or an original model that computes nothing."""

    def run_arrays(self, arrays: object) -> dict[str, np.ndarray]:
        return {}

    def run(self, feeds: object) -> dict[str, np.ndarray]:
        return {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("bundle", type=Path, nargs="?")
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--largest", type=int, default=40)
    parser.add_argument("--weight-heavy", nargs="+", metavar="BACKENDS", default=[])
    arguments = parser.parse_args()
    for backends in arguments.weight_heavy:
        _weigh_products(tuple(backends.split(",")))
    if arguments.weight_heavy:
        return
    if not arguments.bundle:
        parser.error("give MODEL and BUNDLE, or --weight-heavy BACKENDS")
    bundle = load(arguments.bundle)
    _compare(bundle, arguments.model, arguments.calls, arguments.largest)
    _time_dispatch(bundle)
    _weigh(bundle, arguments.model)


def _compare(bundle: LoadedBundle, model: Path, calls: int, largest: int) -> None:
    """Compare the outputs of random shapes with those of ONNX Runtime."""
    session = onnxruntime.InferenceSession(model)
    name = session.get_inputs()[0].name
    outputs = [output.name for output in session.get_outputs()]
    rng = np.random.default_rng(0)
    wrong, worst = 0, 0.0
    for _ in range(calls):
        shape = (rng.integers(1, 4), rng.integers(1, largest + 1))
        feed = {name: rng.integers(0, 8, shape)}
        ours, theirs = bundle.run(feed), session.run(outputs, feed)
        for output, expected in zip(outputs, theirs, strict=True):
            actual = ours[output]
            close = actual.shape == expected.shape and np.allclose(
                actual, expected, RELATIVE, ABSOLUTE * np.abs(expected).max()
            )
            wrong += not close
            if close:
                worst = max(worst, float(np.abs(actual - expected).max()))
    counts = bundle.dispatch_counts()
    print(f"{calls} random shapes: {wrong} wrong outputs, largest difference {worst:.2g}")
    print(
        f"exact {dict(counts.functions)}  padded {dict(counts.padded)}  fallback {counts.fallback}"
    )
    most = sorted(counts.fallback_shapes.items(), key=lambda item: -item[1])[:3]
    print(f"most frequent shapes of the fallback: {most}")


def _time_dispatch(bundle: LoadedBundle) -> None:
    """Time the choice of each way without the work behind it."""
    dispatcher: Dispatcher = bundle._dispatchers["main"]
    session, padding, original = dispatcher._session, dispatcher._padding, dispatcher._original
    if session is None or padding is None or original is None:
        raise SystemExit("compile a bundle with functions, padding and a fallback")
    signature = session.signatures[0]
    tensor = signature.inputs[0]
    assert tensor.shape is not None
    exact = {tensor.name: np.ones(tensor.shape, tensor.dtype)}
    shorter = (*tensor.shape[:-1], tensor.shape[-1] - 1)
    larger = tuple(extent + 1000 for extent in tensor.shape)
    functions = session._by_shapes
    session._by_shapes = dict.fromkeys(functions, _Instant())  # type: ignore[arg-type]
    for function in session._by_shapes.values():
        function.signature = signature
    dispatcher._original = _Instant()  # type: ignore[assignment]
    timed: Mapping[str, Callable[[], object]] = {
        "exact shape": lambda: bundle.run(exact),
        "padded shape (the choice)": lambda: padding.find({tensor.name: shorter}),
        "fallback": lambda: bundle.run(other),
    }
    other = {tensor.name: np.ones(larger, tensor.dtype)}
    for label, call in timed.items():
        print(f"dispatch, {label}: {_median_us(call):.2f} us")
    session._by_shapes, dispatcher._original = functions, original


def _median_us(call: Callable[[], object]) -> float:
    samples = []
    for _ in range(TIMED_CALLS):
        start = time.perf_counter_ns()
        call()
        samples.append((time.perf_counter_ns() - start) * 1e-3)
    return statistics.median(samples)


def _weigh(bundle: LoadedBundle, model: Path) -> None:
    """Compare the memory of a process with the bundle with one with ONNX Runtime."""
    threads = bundle.manifest.threads
    feeds = [bundle.golden(signature.function)[0] for signature in bundle.signatures]
    ours = bundle_footprint(bundle.path, threads)
    with tempfile.TemporaryDirectory() as folder:
        theirs = onnxruntime_footprint([(model, feeds)], threads, Path(folder))
    print(
        f"memory: bundle {ours.rss_bytes >> 20} MiB, ONNX Runtime {theirs.rss_bytes >> 20} MiB: "
        f"{ours.rss_bytes / theirs.rss_bytes:.2f} times; to load {ours.load_s:.2f} s and "
        f"{theirs.load_s:.2f} s"
    )


def _weigh_products(backends: tuple[str, ...]) -> None:
    """Compile the weight-heavy model with these backends, and compare its memory."""
    with tempfile.TemporaryDirectory() as folder:
        model = product_model(Path(folder) / "products.onnx")
        compile_products(model, Path(folder) / "bundle", backends)
        bundle = load(Path(folder) / "bundle")
        serving = bundle.manifest.kept_files
        size_bytes = sum((bundle.path / name).stat().st_size for name in serving)
        print(
            f"{','.join(backends)}: on disk {size_bytes >> 20} MiB, the model "
            f"{model.stat().st_size >> 20} MiB; ",
            end="",
        )
        _weigh(bundle, model)


if __name__ == "__main__":
    main()
