"""What goes into a bundle and comes out of it, without a GPU: `simulated_cases.py` has the other half."""

import numpy as np
import pytest
import tvm_ffi

from collage.errors import InputError
from collage.runtime.arrays import (
    ALIGNMENT,
    as_array,
    as_tensor,
    load_arrays,
    numpy_dtype,
    save_arrays,
)
from collage.runtime.loader import load
from collage.runtime.manifest import Tensor
from collage.runtime.plugin import load_plugin
from collage.runtime.tensor_exchange import DeviceTensor, Feed, owned_results, receive

X = Tensor("x", (2, 8), "float32")


class Producer:
    """A tensor of some other framework."""

    def __init__(self, array):
        self.array = array

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self):
        return as_tensor(self.array).__dlpack__()


def aligned(skip=0):
    """Floats of shape (2, 8) that begin `skip` floats after a multiple of 64 bytes."""
    raw = np.zeros(16 * 4 + 2 * ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT + 4 * skip
    array = raw[start : start + 64].view("float32").reshape(2, 8)
    array[...] = np.arange(-8, 8).reshape(2, 8)
    return array


@pytest.mark.parametrize("wrapped", [Producer, lambda array: array], ids=["dlpack", "numpy"])
@pytest.mark.parametrize(("skip", "in_place"), [(0, True), (1, False)])
def test_aligned_memory_is_read_in_place(wrapped, skip, in_place):
    array = aligned(skip)
    (argument,) = Feed([X]).arguments({"x": receive("x", wrapped(array), 0)}, 0)
    assert (argument.data_ptr() == array.ctypes.data) is in_place
    np.testing.assert_array_equal(as_array(argument), array)
    assert argument.data_ptr() % ALIGNMENT == 0


def test_copied_inputs_share_one_buffer():
    feed, arrays = Feed([X]), [aligned(skip) for skip in (1, 2, 3)]
    arguments = [feed.arguments({"x": receive("x", array, 0)}, 0)[0] for array in arrays]
    assert len({argument.data_ptr() for argument in arguments}) == 1


@pytest.mark.parametrize("wrapped", [Producer, lambda array: array], ids=["dlpack", "numpy"])
def test_arrays_and_tensors_are_accepted_and_returned(bundle, wrapped):
    loaded, array = load(bundle), aligned()
    expected = np.maximum(array, 0)
    np.testing.assert_array_equal(loaded.run({"x": wrapped(array)})["y"], expected)
    tensor = loaded.run_tensors({"x": wrapped(array)})["y"]
    assert (tensor.shape, tensor.dtype, tensor.__dlpack_device__()) == ((2, 8), "float32", (1, 0))
    loaded.run({"x": 0 * array})
    np.testing.assert_array_equal(np.from_dlpack(tensor), expected)
    np.testing.assert_array_equal(tensor.numpy(), expected)


def test_shapes_of_other_frameworks_choose_the_function(bundle):
    ones_array = np.ones((1, 8), "float32")
    np.testing.assert_array_equal(load(bundle).run({"x": Producer(ones_array)})["y"], ones_array)


def test_what_cannot_be_read_says_so(bundle):
    class Refusing(Producer):
        def __dlpack__(self):
            raise BufferError("it requires a gradient")

    with pytest.raises(InputError, match="'x' cannot be read through DLPack: it requires a grad"):
        load(bundle).run({"x": Refusing(aligned())})
    with pytest.raises(InputError, match="has dtype float64; expected float32"):
        load(bundle).run({"x": Producer(aligned().astype("float64"))})


def test_read_only_arrays_are_copied(bundle):
    array = aligned()
    array.flags.writeable = False
    np.testing.assert_array_equal(load(bundle).run({"x": array})["y"], np.maximum(array, 0))


def test_a_result_that_is_an_argument_has_memory_of_its_own():
    load_plugin()
    tensor = as_tensor(aligned())
    (same,) = owned_results([tensor], [tensor], None, 0)
    as_array(tensor)[...] = 7
    np.testing.assert_array_equal(same.numpy(), aligned())


def test_bfloat16_goes_to_tensors_and_files_and_back(tmp_path):
    load_plugin()
    array = np.arange(6).reshape(2, 3).astype(numpy_dtype("bfloat16"))
    tensor = as_tensor(array)
    assert tensor.dtype == tvm_ffi.dtype("bfloat16")
    assert tensor.data_ptr() == array.ctypes.data
    np.testing.assert_array_equal(DeviceTensor(tensor).numpy(), array)
    save_arrays(tmp_path / "arrays.npz", {"x": array, "n": np.arange(3)})
    loaded_arrays = load_arrays(tmp_path / "arrays.npz")
    assert {name: value.dtype.name for name, value in loaded_arrays.items()} == {
        "x": "bfloat16", "n": "int64",
    }  # fmt: skip
    np.testing.assert_array_equal(loaded_arrays["x"], array)
