"""Whatever bytes come, the protocol's parser returns a request or says what is wrong."""

import json

import hypothesis.strategies as st
import numpy as np
from hypothesis import given, settings

from collage.errors import InputError
from collage.runtime.manifest import Signature, Tensor
from containers.serving.memory import request_costs
from containers.serving.protocol import Request, parse_request

SIGNATURES = [
    Signature(
        "main",
        (Tensor("x", (2, 3), "float32"), Tensor("n", (1,), "int64")),
        (Tensor("y", (2, 3), "float32"),),
    )
]
COSTS = request_costs(SIGNATURES, None)
LENGTHS = st.none() | st.integers(-2, 400).map(str) | st.text(max_size=6)

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


def mostly(*right):
    """One of the right values, or now and then anything."""
    return st.sampled_from(right) | ANYTHING


PARAMETERS = st.fixed_dictionaries(
    {},
    optional={
        "binary_data_size": mostly(0, 8, 24), "binary_data": mostly(True, False),
        "binary_data_output": mostly(True, False),
    },
)  # fmt: skip
NUMBERS = st.lists(
    st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=6, max_size=6
)
DATA = (
    NUMBERS
    | NUMBERS.map(lambda six: [six[:3], six[3:]])
    | st.lists(st.integers(), max_size=2)
    | ANYTHING
)
ENTRY = st.fixed_dictionaries(
    {},
    optional={
        "name": mostly("x", "n", "y"), "shape": mostly([2, 3], [1], [6]),
        "datatype": mostly("FP32", "INT64", "BOOL"), "data": DATA, "parameters": PARAMETERS | ANYTHING,
    },
)  # fmt: skip
REQUEST = st.fixed_dictionaries(
    {},
    optional={
        "id": mostly("1"), "inputs": st.lists(ENTRY | ANYTHING, max_size=3) | ANYTHING,
        "outputs": st.lists(ENTRY | ANYTHING, max_size=2) | ANYTHING, "parameters": PARAMETERS | ANYTHING,
    },
)  # fmt: skip


def answered(body, length):
    """Parse; every error but InputError fails the test."""
    reason = ""
    try:
        return parse_request(bytearray(body), length, SIGNATURES, COSTS.json)
    except InputError as error:
        reason = str(error)
    assert 0 < len(reason) < 1000
    return None


@settings(max_examples=200, deadline=None)
@given(REQUEST, st.binary(max_size=40), LENGTHS)
def test_any_request_is_parsed_or_refused(raw, tail, length):
    text = json.dumps(raw).encode()
    actual = answered(text + tail, str(len(text)) if length is None else length)
    assert actual is None or isinstance(actual, Request)
    if actual is not None:
        assert set(actual.inputs) <= {"x", "n"}
        assert all(isinstance(value, np.ndarray) for value in actual.inputs.values())


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200) | st.text('[]{}",:0\\u1 e-.', max_size=200).map(str.encode), LENGTHS)
def test_any_bytes_are_parsed_or_refused(body, length):
    answered(body, length)


@settings(max_examples=200, deadline=None)
@given(NUMBERS, st.integers(-(2**63), 2**63 - 1))
def test_right_numbers_arrive_as_they_were_sent(six, integer):
    raw = {
        "inputs": [
            {"name": "x", "shape": [2, 3], "datatype": "FP32", "data": six},
            {"name": "n", "shape": [1], "datatype": "INT64", "data": [integer]},
        ]
    }
    actual = answered(json.dumps(raw).encode(), None)
    np.testing.assert_array_equal(actual.inputs["x"].ravel(), np.float32(six))
    assert actual.inputs["n"].tolist() == [integer]


def test_null_is_absent_wherever_a_field_is_optional():
    def request(absent):
        fields = dict.fromkeys(absent)
        x = {"name": "x", "shape": [2, 3], "datatype": "FP32", "data": [0.0] * 6}
        n = {"name": "n", "shape": [1], "datatype": "INT64", "data": [1]}
        flags = {"binary_data_size": None} if fields else {}
        return {"inputs": [x | fields, n | {"parameters": flags}], **fields}

    nulls = answered(json.dumps(request(["parameters", "id", "outputs"])).encode(), None)
    plain = answered(json.dumps(request([])).encode(), None)
    assert (nulls.id, nulls.outputs, nulls.binary) == ("", {}, False)
    assert (nulls.id, nulls.outputs, nulls.binary) == (plain.id, plain.outputs, plain.binary)
    assert nulls.inputs.keys() == plain.inputs.keys()
