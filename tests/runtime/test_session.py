"""One bundle in many threads, many bundles in one process, and inputs of every kind on the fast path."""

import threading
from collections.abc import Callable

import numpy as np
import pytest
from tvm import relax

from collage.errors import InputError
from collage.runtime.arrays import aligned_copy
from collage.runtime.loader import load
from collage.runtime.manifest import Signature, Tensor
from collage.runtime.session import ExecutableSession
from tests.runtime import executables
from tests.runtime.conftest import SHAPES, write_manifest

THREADS, CALLS = 8, 250


def in_threads(work: Callable[[np.random.Generator], None]) -> list[BaseException]:
    """Do the work CALLS times in each of THREADS threads; return what it raised."""
    errors: list[BaseException] = []
    start = threading.Barrier(THREADS)

    def repeat(seed: int) -> None:
        random = np.random.default_rng(seed)
        start.wait()
        try:
            for _ in range(CALLS):
                work(random)
        except BaseException as error:  # whatever it is, the test shows it
            errors.append(error)

    threads = [threading.Thread(target=repeat, args=(seed,)) for seed in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def check_relu(run, random):
    """Run on random numbers of a random shape, aligned or not."""
    shape = SHAPES["main"] if random.random() < 0.5 else SHAPES["main_1"]
    x = random.standard_normal(shape).astype("float32")
    np.testing.assert_array_equal(run({"x": x}), np.maximum(x, 0))


def test_many_threads_get_the_right_answers(bundle):
    loaded = load(bundle)
    arrays, tensors = (
        lambda feeds: loaded.run(feeds)["y"],
        lambda feeds: loaded.run_tensors(feeds)["y"].numpy(),
    )
    assert not in_threads(lambda random: check_relu(random.choice([arrays, tensors]), random))


def test_check_and_benchmark_beside_calls(bundle):
    loaded = load(bundle)
    stop = threading.Event()

    def beside() -> None:
        while not stop.is_set():
            loaded.check()
            loaded.benchmark(0.001)

    thread = threading.Thread(target=beside)
    thread.start()
    try:
        assert not in_threads(lambda random: check_relu(lambda f: loaded.run(f)["y"], random))
    finally:
        stop.set()
        thread.join()


@pytest.fixture(scope="module")
def other_bundle(bundle, tmp_path_factory):
    """The same executable for two threads."""
    folder = tmp_path_factory.mktemp("other")
    for file in bundle.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    write_manifest(folder, threads=2)
    return folder


def test_two_bundles_in_one_process(bundle, other_bundle):
    loaded = [load(bundle), load(other_bundle)]
    assert not in_threads(
        lambda random: check_relu(lambda f: random.choice(loaded).run(f)["y"], random)
    )


def test_bundles_may_be_loaded_at_the_same_time(bundle, other_bundle):
    loaded = []
    threads = [
        threading.Thread(target=lambda folder: loaded.append(load(folder)), args=(folder,))
        for folder in (bundle, other_bundle) * 2
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loaded) == 4
    for loaded_bundle in loaded:
        loaded_bundle.check()


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """y = relu(x) in an executable that is no bundle."""
    file = tmp_path_factory.mktemp("executable") / "model.so"
    blob = executables.onnx_blob(executables.relu_model((2, 8)))
    types = [((2, 8), "float32")]
    executables.export(executables.chain([("onnxruntime", blob)], types, types), file)
    x, y = (Tensor(name, (2, 8), "float32") for name in "xy")
    return ExecutableSession(file, (Signature("main", (x,), (y,)),), threads=1)


class Masked(np.ndarray):
    """A subclass, as libraries have them."""


KINDS = {
    "list": lambda x: x.tolist(),
    "subclass": lambda x: x.view(Masked),
    "big endian": lambda x: x.astype(">f4"),
    "transposed": lambda x: np.asfortranarray(x),
    "read-only": lambda x: np.frombuffer(x.tobytes(), "float32").reshape(x.shape),
}


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_of_every_kind(session, kind):
    x = np.arange(-8, 8, dtype="float32").reshape(2, 8)
    value = KINDS[kind](x)
    if kind in ("list", "big endian"):
        with pytest.raises(InputError, match=r"has dtype .*; expected float32"):
            session.run({"x": value})
        return
    output = session.run({"x": value})["y"]
    assert type(output) is np.ndarray
    np.testing.assert_array_equal(output, np.maximum(x, 0))


def test_one_input_too_many_is_refused(session):
    feeds = {"x": np.zeros((2, 8), "float32"), "z": np.zeros(1, "float32")}
    with pytest.raises(InputError, match="unknown input 'z'"):
        session.run(feeds)


def test_a_call_that_failed_holds_up_no_other(session):
    x = np.ones((2, 8), "float32")
    with pytest.raises(InputError):
        session.run({"x": x.astype("float64")})
    np.testing.assert_array_equal(session.run({"x": x})["y"], x)


BIG = (64, 1024)
"""Of tensors that are handed on, not copied."""


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """A function that returns a result, an input, a view of that result, a constant and a small one."""
    x, z = (relax.Var(name, relax.TensorType(BIG, "float32")) for name in "xz")
    small = relax.Var("s", relax.TensorType((1, 8), "float32"))
    builder = relax.BlockBuilder()
    constant = np.arange(64 * 1024, dtype="float32").reshape(BIG)
    with builder.function("main", [x, z, small]):
        with builder.dataflow():
            fresh = builder.emit(relax.op.add(x, z))
            view = builder.emit(relax.op.reshape(fresh, (64 * 1024,)))
            little = builder.emit(relax.op.negative(small))
            results = relax.Tuple([fresh, x, view, relax.const(constant), little])
            result = builder.emit_output(results)
        builder.emit_func_output(result)
    file = executables.export(builder.get(), tmp_path_factory.mktemp("mixed") / "model.so")
    inputs = [
        Tensor("x", BIG, "float32"),
        Tensor("z", BIG, "float32"),
        Tensor("s", (1, 8), "float32"),
    ]
    shapes = {"fresh": BIG, "x_": BIG, "view": (64 * 1024,), "constant": BIG, "little": (1, 8)}
    outputs = [Tensor(name, shape, "float32") for name, shape in shapes.items()]
    return ExecutableSession(file, (Signature("main", tuple(inputs), tuple(outputs)),), threads=1)


def test_large_outputs_are_handed_on_and_owned(mixed):
    """What the caller writes into an output, or the next call computes, is seen nowhere else."""
    constant = np.arange(64 * 1024, dtype="float32").reshape(BIG)
    earlier = []
    for call in range(5):
        feeds = {name: aligned_copy(np.full(BIG, call, "float32")) for name in "xz"}
        feeds["s"] = np.full((1, 8), call, "float32")
        outputs = mixed.run(feeds)
        feeds["x"][...] = -1
        expected = {
            "fresh": np.full(BIG, 2 * call), "x_": np.full(BIG, call), "constant": constant,
            "view": np.full(64 * 1024, 2 * call), "little": np.full((1, 8), -call),
        }  # fmt: skip
        for name, array in outputs.items():
            np.testing.assert_array_equal(array, expected[name], err_msg=f"{name}, call {call}")
            array[...] = -2  # of this array alone
            earlier.append(array)
    assert all((array == -2).all() for array in earlier)


def test_a_fresh_output_is_not_copied(mixed):
    feeds = {name: aligned_copy(np.ones(BIG, "float32")) for name in "xz"}
    feeds["s"] = np.ones((1, 8), "float32")
    for _ in range(3):
        outputs = mixed.run(feeds)
    assert outputs["fresh"].base is not None
    places = set()
    for _ in range(10):
        del outputs  # its memory is that of the next call
        outputs = mixed.run(feeds)
        places.add(outputs["fresh"].ctypes.data)
    assert len(places) <= 3
