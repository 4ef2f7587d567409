import numpy as np
import pytest

from collage.errors import BackendError
from collage.runtime.blob import ALIGNMENT, pack, unpack


def test_round_trip_keeps_header_and_tensors():
    tensors = [np.arange(5, dtype="int64"), np.zeros((2, 0), "float16"), np.array(3.5, "float32")]
    header, unpacked = unpack(pack({"threads": 2, "names": ["a"]}, tensors))
    assert header["threads"] == 2
    assert header["names"] == ["a"]
    for value, expected in zip(unpacked, tensors, strict=True):
        np.testing.assert_array_equal(value, expected)
        assert value.dtype == expected.dtype
        assert value.shape == expected.shape


def test_tensors_are_aligned_and_bytes_repeat():
    tensors = [np.arange(n, dtype="uint8") for n in (1, 65, 64)]
    blob = pack({"b": 1, "a": 2}, tensors)
    assert blob == pack({"a": 2, "b": 1}, tensors)
    header, _ = unpack(blob)
    assert [entry["offset"] % ALIGNMENT for entry in header["tensors"]] == [0, 0, 0]
    assert len(blob) % ALIGNMENT == 0


@pytest.mark.parametrize("blob", [b"", b"nonsense" * 9, pack({}, [np.zeros(200)])[:-512]])
def test_wrong_bytes_are_refused(blob):
    with pytest.raises(BackendError):
        unpack(blob)
