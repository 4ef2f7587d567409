"""A node test of `onnx.backend.test`: its model as a file, inputs, and the outputs that it states."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import onnx
from onnx.backend.test.case.node import collect_testcases
from onnx.backend.test.case.test_case import TestCase

from collage.measure.numerics import difference

Value = object
"""An array; a list of a sequence; a dict of a map; None of an empty optional value."""


@dataclass(frozen=True)
class NodeTest:
    """A test, with its model in a file.

    Attributes:
        file: the model.
        feeds: inputs by name, one mapping for each data set.
        stated: outputs in the model's order, for each data set.
    """

    name: str
    file: Path
    feeds: tuple[Mapping[str, Value], ...]
    stated: tuple[tuple[Value, ...], ...]


@cache
def node_tests() -> Mapping[str, TestCase]:
    """Return the tests by name, in the order of the generator."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {case.name: case for case in collect_testcases(None)}


def domains_by_test() -> dict[str, str]:
    """Return the domain of each test's operators by the test's name; several domains are one text."""
    return {
        name: ", ".join(sorted({node.domain or "ai.onnx" for node in case.model.graph.node}))
        for name, case in node_tests().items()
    }


def write_test(name: str, folder: Path) -> NodeTest:
    """Write the model of a test into an empty folder."""
    case, file = node_tests()[name], folder / "model.onnx"
    onnx.save(case.model, file)
    names = [value.name for value in case.model.graph.input]
    return NodeTest(
        name,
        file,
        tuple(dict(zip(names, map(_value, inputs), strict=True)) for inputs, _ in case.data_sets),
        tuple(tuple(map(_value, outputs)) for _, outputs in case.data_sets),
    )


def _value(value: object) -> Value:
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    if isinstance(value, list | tuple):
        return [_value(element) for element in value]
    return np.asarray(value) if isinstance(value, np.generic) else value


def values_differ(expected: Sequence[Value], actual: Sequence[Value]) -> str:
    """Return the first difference of two lists of values in words, or ""."""
    if len(expected) != len(actual):
        return f"{len(actual)} values, expected {len(expected)}"
    return next(filter(None, _differences(expected, actual)), "")


def _differences(expected: Sequence[Value], actual: Sequence[Value]) -> Iterator[str]:
    for reference, value in zip(expected, actual, strict=True):
        if isinstance(reference, list) and isinstance(value, list):
            yield values_differ(reference, value)
        elif isinstance(reference, dict) and isinstance(value, dict):
            yield "" if list(reference) == list(value) else "the keys differ"
            yield values_differ(list(reference.values()), list(value.values()))
        elif reference is None or value is None:
            yield "" if reference is value else "an optional value is missing"
        else:
            yield _array_difference(np.asarray(reference), np.asarray(value))


def _array_difference(expected: np.ndarray, actual: np.ndarray) -> str:
    if expected.dtype.kind not in "OSU":
        return difference([_comparable(expected)], [_comparable(actual)])
    same = expected.shape == actual.shape and (expected.astype(str) == actual.astype(str)).all()
    return "" if same else "the texts differ"


def _comparable(array: np.ndarray) -> np.ndarray:
    """Return small floats as float32, where NaN is equal to NaN."""
    return array.astype(np.float32) if "float8" in array.dtype.name else array
