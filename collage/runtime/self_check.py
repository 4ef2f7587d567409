"""The self-check of a loaded bundle: its outputs on the golden inputs, compared with the golden outputs."""

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from collage.errors import BundleError
from collage.runtime.fallback import Fallback
from collage.runtime.function_names import fallback_name
from collage.runtime.golden_values import to_arrays
from collage.runtime.manifest import Manifest, ReducedPrecision, Signature
from collage.runtime.precision import output_error
from collage.runtime.tensor_exchange import DeviceTensor
from collage.runtime.tolerances import float_tolerance, integer_step

Arrays = dict[str, np.ndarray]


class CheckedBundle(Protocol):
    """A loaded bundle (`collage.runtime.loader.LoadedBundle`)."""

    manifest: Manifest

    def run(self, inputs: Mapping[str, object], entry: str | None = None) -> Arrays: ...

    def run_tensors(
        self, inputs: Mapping[str, object], *, entry: str | None = None
    ) -> dict[str, DeviceTensor]: ...

    def golden(self, function: str) -> tuple[Arrays, Arrays]: ...

    def golden_inputs(self, function: str) -> Mapping[str, object]: ...


def check_bundle(bundle: CheckedBundle) -> None:
    """Compare every function with the golden data; raises BundleError when numbers differ."""
    manifest = bundle.manifest
    for fallback in manifest.fallbacks:
        if fallback.entry in manifest.entries_without_functions:
            _check_fallback(bundle, fallback)
    for signature in manifest.functions:
        inputs, expected = bundle.golden(signature.function)
        outputs = list(bundle.run(inputs, signature.entry).items())
        if manifest.device.takes_device_tensors:
            tensors = bundle.run_tensors(inputs, entry=signature.entry)
            outputs += [(name, value.numpy()) for name, value in tensors.items()]
        for name, value in outputs:
            _compare_output(manifest, signature, name, value=value, expected=expected[name])


def _check_fallback(bundle: CheckedBundle, fallback: Fallback) -> None:
    """Compare the fallback with its golden data, value by value."""
    function = fallback_name(fallback.entry)
    expected = bundle.golden(function)[1]
    outputs = bundle.run(bundle.golden_inputs(function), fallback.entry)
    for output in fallback.outputs:
        for name, array in to_arrays(output.name, outputs[output.name], output.type).items():
            _compare_value((function, name), array, expected.get(name), bundle.manifest)


def _compare_value(
    output: tuple[str, str], value: np.ndarray, golden: np.ndarray | None, manifest: Manifest
) -> None:
    function, name = output
    label = f"{function}, output {name}"
    if golden is None or value.dtype.kind != golden.dtype.kind:
        raise BundleError(f"self check: {label} is {value.dtype}, which the golden data is not")
    if function in manifest.random_functions:
        return
    if value.dtype.kind != "U":
        _compare(label, value, golden, manifest.quantised)
    elif not np.array_equal(value, golden):
        raise BundleError(
            f"self check: {label} differs from the golden data. A library computes other values: do "
            "not serve this bundle here."
        )


def _compare_output(
    manifest: Manifest,
    signature: Signature,
    name: str,
    *,
    value: np.ndarray,
    expected: np.ndarray,
) -> None:
    function, precision = signature.function, manifest.precision
    if function in manifest.random_functions:
        _compare_declared(signature, name, value)
    elif precision is not None and precision.reduced:
        _compare_within((function, name), value, expected, precision)
    else:
        _compare(f"{function}, output {name}", value, expected, manifest.quantised)


def _compare_declared(signature: Signature, name: str, value: np.ndarray) -> None:
    """Compare the shape and dtype of a random output with its signature."""
    declared = next(tensor for tensor in signature.outputs if tensor.name == name)
    sizes = value.shape if declared.shape is None else declared.shape
    fits = len(sizes) == value.ndim and all(
        size in (-1, extent) for size, extent in zip(sizes, value.shape, strict=True)
    )
    if not fits or str(value.dtype) != declared.dtype:
        raise BundleError(
            f"self check: {signature.function}, output {name} is {value.dtype}{list(value.shape)}, "
            f"expected {declared}"
        )


def _compare(label: str, value: np.ndarray, expected: np.ndarray, quantised: bool) -> None:
    if value.shape != expected.shape or value.dtype != expected.dtype:
        raise BundleError(
            f"self check: {label} is {value.dtype}{list(value.shape)}, "
            f"expected {expected.dtype}{list(expected.shape)}"
        )
    relative, absolute = float_tolerance(expected.dtype, quantised=quantised) or (0.0, 0.0)
    step = integer_step(expected.dtype, quantised=quantised)
    scale = float(np.abs(expected).max(initial=0.0)) if relative else 0.0
    wide = np.promote_types(expected.dtype, np.float32) if relative else expected.dtype
    reference, actual = expected.astype(wide, copy=False), value.astype(wide, copy=False)
    if not np.allclose(actual, reference, relative, absolute * scale + step, equal_nan=True):
        worst = np.abs(value.astype("float64") - expected.astype("float64")).max()
        raise BundleError(
            f"self check: {label} differs from the golden data by up to {worst:.3g}. The machine or "
            "a library computes other numbers: do not serve this bundle here."
        )


def _compare_within(
    output: tuple[str, str], value: np.ndarray, expected: np.ndarray, precision: ReducedPrecision
) -> None:
    function, name = output
    error = output_error(expected, value, probability=name in precision.probabilities)
    if error > precision.tolerance:
        raise BundleError(
            f"self check: {function}, output {name} has an error of {error:.3g}, above the tolerance of "
            f"{precision.tolerance:g}. The machine or a library computes other numbers: do not serve "
            "this bundle here."
        )
