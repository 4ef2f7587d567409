"""The walk over a file's bytes: lists that are not packed take one field, and change no verdict."""

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collage.errors import ModelError
from collage.frontend.protobuf_wire import WireReader

LISTS = frozenset({7, 8, 9})
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
ATTRIBUTES = st.builds(
    onnx.AttributeProto,
    name=st.text(max_size=3),
    floats=st.lists(st.floats(width=32), max_size=6),
    ints=st.lists(INT64, max_size=6),
    strings=st.lists(st.binary(max_size=200), max_size=6),
    i=INT64,
)


def numbers(data: bytes, runs: frozenset[int], max_fields: int = 1000) -> list[int] | None:
    """Return the fields' numbers without repetitions, None for malformed data."""
    try:
        fields = WireReader(data, max_fields).fields(0, len(data), runs)
        return list(dict.fromkeys(field.number for field in fields))
    except ModelError:
        return None


@given(ATTRIBUTES)
def test_runs_hide_no_other_field(attribute):
    data = attribute.SerializeToString()
    assert numbers(data, frozenset()) is not None
    assert numbers(data, LISTS) == numbers(data, frozenset())


@given(ATTRIBUTES, st.data())
def test_damage_in_runs_is_seen(attribute, data):
    content = bytearray(attribute.SerializeToString())
    place = data.draw(st.integers(0, max(len(content) - 1, 0)))
    content[place : place + 1] = data.draw(st.binary(max_size=3))
    assert numbers(bytes(content), LISTS) == numbers(bytes(content), frozenset())


def test_a_run_counts_as_one_field():
    attribute = onnx.AttributeProto(
        floats=[0.5] * 100_000, ints=[-1, 3] * 50_000, strings=[b"BRANCH_LEQ", b"LEAF"] * 50_000
    )
    data = attribute.SerializeToString()
    assert numbers(data, LISTS, max_fields=9) == [7, 8, 9]
    with pytest.raises(ModelError, match="too many fields"):
        list(WireReader(data, 1000).fields(0, len(data)))
