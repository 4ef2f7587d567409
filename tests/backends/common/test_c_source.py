"""Kernels written in C: the interface of a subclass, and its error messages."""

import re

import numpy as np
import pytest
from onnx import helper

from collage.backends.base import BuildContext
from collage.backends.common import c_compiler
from collage.backends.common.c_source import CSourceBackend, Library, Region
from collage.backends.cpu.onnxruntime import OnnxRuntimeBackend
from collage.errors import BackendError
from collage.measure.measurement_request import MeasurementRequest, compile_request
from collage.rules import find_candidates, is_constant, op, wildcard
from collage.runtime import plugin
from collage.runtime.blob import unpack
from tests.backends import regions
from tests.backends.faulty import FaultyBackend
from tests.runtime.executables import call_kernel

X = wildcard()


class AddReluBackend(CSourceBackend):
    """max(x + s, 0) for tensors of one shape; and relu alone."""

    name = "add-relu"
    patterns = {"add": op("Relu", op("Add", name="add"), name="relu"), "relu": op("Relu")}

    def refuses(self, region: Region) -> str | None:
        return "too long" if region.outputs[0].size > 1000 else None

    def source(self, region: Region, threads: int) -> str:
        y, total = region.outputs[0], " + ".join(f"{operand}[i]" for operand in region.inputs)
        return (
            f"for (int i = 0; i < {y.size}; ++i) {{ float s = {total}; {y}[i] = s > 0 ? s : 0; }}"
        )


class ScaleBackend(CSourceBackend):
    """x * w with a weight of one row."""

    name = "scale"
    patterns = {"scale": op("Mul", X, is_constant())}

    def source(self, region: Region, threads: int) -> str:
        x, weight, y = region.inputs[0], region.weights[0], region.outputs[0]
        return f"for (int i = 0; i < {y.size}; ++i) {y}[i] = {x}[i] * {weight}[i % {weight.size}];"


def sums(path, side=4, tapped=False):
    """x + z, relu of it, relu again; `tapped` returns the sum as well."""
    nodes = [
        helper.make_node("Add", ["x", "z"], ["s"]),
        helper.make_node("Relu", ["s"], ["r"]),
        helper.make_node("Relu", ["r"], ["y"]),
    ]
    outputs = {"y": (side, side)} | ({"s": (side, side)} if tapped else {})
    return regions._function(path, nodes, {"x": (side, side), "z": (side, side)}, outputs)


def candidates(backend, function):
    listed = find_candidates(function, [backend])
    return [c.inside for c in listed if c.backend == backend.name]


def test_every_match_is_a_candidate_that_computes_the_same(tmp_path):
    function, backend = sums(tmp_path), AddReluBackend()
    assert candidates(backend, function) == [0b11, 0b10, 0b100]
    for nodes in (0b11, 0b10, 0b100):
        regions.check_region(backend, function, nodes)


def test_inner_values_that_others_read_are_not_lost(tmp_path):
    function = sums(tmp_path, tapped=True)
    assert candidates(AddReluBackend(), function) == [0b10, 0b100]


def test_weights_come_with_the_kernel(tmp_path):
    nodes = [helper.make_node("Mul", ["w", "x"], ["y"])]
    weight = regions._weight("w", 8)
    function = regions._function(tmp_path, nodes, {"x": (3, 8)}, {"y": (3, 8)}, [weight])
    kernel = ScaleBackend().compile(function, 1, BuildContext(1))
    header, (image, stored) = unpack(kernel.blob)
    assert header["inputs"] == 1
    assert image[:4].tobytes() == b"\x7fELF"
    np.testing.assert_array_equal(stored, function.weights["w"])
    regions.check_region(ScaleBackend(), function, 1)


def test_reasons(tmp_path):
    function = sums(tmp_path)
    backend = AddReluBackend()
    assert [backend.unsupported(function, node) for node in range(3)] == [
        "no pattern of add-relu takes Add alone",
        None,
        None,
    ]
    large = sums(tmp_path, side=40)
    assert backend.unsupported(large, 1) == "too long"
    assert candidates(backend, large) == []
    with pytest.raises(BackendError, match=r"no pattern of add-relu fits Add$"):
        backend.compile(function, 0b1, BuildContext(1))
    with pytest.raises(BackendError, match="no variant 'fast'"):
        backend.compile(function, 0b10, BuildContext(1), variant="fast")


class HalfBackend(AddReluBackend):
    name = "half"
    dtypes = frozenset({"float16"})


def test_other_dtypes_are_refused(tmp_path):
    assert HalfBackend().unsupported(sums(tmp_path), 1) == "'s' is float32, not float16"


@pytest.fixture
def activations(tmp_path):
    names = [f"v{i}" for i in range(6)]
    operators = ("Relu", "Sigmoid", "Tanh", "Softplus", "Softsign")
    nodes = [
        helper.make_node(operator, [source], [target])
        for operator, source, target in zip(operators, names, names[1:], strict=False)
    ]
    return regions._function(tmp_path, nodes, {"v0": (1, 8)}, {"v5": (1, 8)})


def test_a_compile_error_is_the_compilers_own(activations):
    with pytest.raises(BackendError) as caught:
        FaultyBackend().compile(activations, 0b100, BuildContext(1))
    message = str(caught.value)
    assert message.startswith("the C compiler refuses it: faulty refused:1:")
    assert re.search("error: .*no_such_name", message)
    assert "\n" not in message


def test_a_missing_symbol_and_a_failure_are_named(activations):
    x, y = np.ones((1, 8), "float32"), np.ones((1, 8), "float32")
    for nodes, words in ((0b1000, "undefined symbol: no_such_function"), (0b10000, "returned 7")):
        kernel = FaultyBackend().compile(activations, nodes, BuildContext(1))
        with pytest.raises(RuntimeError, match=words):
            call_kernel(kernel.kind, kernel.blob, [x], [y])


@pytest.mark.parametrize("command", ["no-such-compiler", "no-such-compiler -m64"])
def test_without_a_compiler_it_says_what_to_install(tmp_path, monkeypatch, command):
    monkeypatch.setenv("CC", command)
    availability = AddReluBackend().availability()
    assert not availability.available
    assert "no C compiler 'no-such-compiler' ($CC): install gcc or clang" in availability.reason
    with pytest.raises(BackendError, match="no C compiler"):
        AddReluBackend().compile(sums(tmp_path), 0b10, BuildContext(1))


def test_a_compiler_that_fails_is_a_reason(monkeypatch):
    monkeypatch.setenv("CC", "false")
    assert "the C compiler 'false' does not work" in AddReluBackend().availability().reason


def test_equal_sources_are_compiled_once(tmp_path, monkeypatch):
    c_compiler.build.cache_clear()
    commands, run = [], c_compiler.run_compiler
    monkeypatch.setattr(
        c_compiler, "run_compiler", lambda *a, **k: commands.append(a[0]) or run(*a, **k)
    )
    function = sums(tmp_path)
    for nodes in (0b10, 0b100, 0b10):
        AddReluBackend().compile(function, nodes, BuildContext(1))
    assert ["-c" in command for command in commands] == [True, False]


class FastBackend(AddReluBackend):
    name = "fast"
    flags = ("-O3", "-ffast-math")


def test_fast_kernels_leave_the_denormals_of_others_alone(tmp_path):
    function, tiny = sums(tmp_path), np.full((1,), 1e-40, "float32")
    assert (tiny * np.float32(0.5) > 0).all()
    regions.check_region(FastBackend(), function, 0b11)
    assert (tiny * np.float32(0.5) > 0).all()


ERRORS = [
    ("a.c:1:2: error: x\na.c:1:2: note: y\nb: error: z\n", "a.c:1:2: error: x; b: error: z"),
    (
        "/usr/bin/ld: cannot find -lfoo\ncollect2: error: ld returned 1\n",
        "/usr/bin/ld: cannot find -lfoo",
    ),
    ("", "it does not say why"),
]


@pytest.mark.parametrize(("output", "shown"), ERRORS)
def test_the_first_errors_are_shown(output, shown):
    assert c_compiler.first_errors(output) == shown


def test_missing_libraries_are_named_and_versions_identify(monkeypatch):
    monkeypatch.setattr(plugin, "LIBRARIES", dict(plugin.LIBRARIES))

    class Absent(AddReluBackend):
        libraries = {"absent": Library("no-such-distribution", "libabsent.so")}

    class Present(AddReluBackend):
        libraries = {"numpy-core": Library("numpy", "_multiarray_umath*.so")}

    class Clashing(AddReluBackend):
        libraries = {"openvino": Library("numpy", "_multiarray_umath*.so")}

    assert "pip install 'no-such-distribution'" in Absent().availability().reason
    assert f"numpy-core={np.__version__}" in Present().identity
    assert "compiler=" in Present().identity
    with pytest.raises(BackendError, match="'openvino' is taken by openvino"):
        Clashing()


def test_an_edited_module_is_another_identity(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    text = "from tests.backends.common.test_c_source import AddReluBackend as Base\nclass B(Base): pass\n"
    identities = set()
    for name, source in (("mine_a", text), ("mine_b", text), ("mine_c", text + "# edited\n")):
        (tmp_path / f"{name}.py").write_text(source)
        identities.add(__import__(name).B().identity)
    assert len(identities) == 2


class TwoSumsBackend(AddReluBackend):
    """Two implementations of one pattern; the second computes something else."""

    name = "two-sums"
    patterns = {"sum": op("Add", name="add"), "difference": op("Add"), "relu": op("Relu")}

    def source(self, region: Region, threads: int) -> str:
        y, inputs = region.outputs[0], [f"{operand}[i]" for operand in region.inputs]
        sign = "-" if region.pattern == "difference" else "+"
        bound = f"{y}[i] < 0" if region.pattern == "relu" else "0"
        value = f" {sign} ".join(inputs)
        return (
            f"for (int i = 0; i < {y.size}; ++i) {{ {y}[i] = {value}; if ({bound}) {y}[i] = 0; }}"
        )


def call_labelled(function, nodes, label, inputs, shapes):
    request = MeasurementRequest(function.name, nodes, "two-sums", "", label)
    kernel = compile_request(TwoSumsBackend(), function, request, BuildContext(1))
    outputs = [np.full(shape, np.nan, "float32") for shape in shapes]
    call_kernel(kernel.kind, kernel.blob, inputs, outputs)
    return outputs


def test_a_label_chooses_among_patterns_of_the_same_nodes(tmp_path):
    function = sums(tmp_path)
    listed = find_candidates(function, [TwoSumsBackend()])
    assert [(c.inside, c.implementation) for c in listed if not c.is_host] == [
        (0b1, "difference"), (0b1, "sum"), (0b10, "relu"), (0b100, "relu"),
    ]  # fmt: skip
    x, z = (np.random.default_rng(seed).standard_normal((4, 4), "float32") for seed in (1, 2))
    for label, expected in (("sum", x + z), ("difference", x - z)):
        (y,) = call_labelled(function, 0b1, label, [x, z], [(4, 4)])
        np.testing.assert_array_equal(y, expected)


def test_several_composites_are_one_kernel(tmp_path):
    """The sum is an output too; the order of the parts is that of their data, not of the label."""
    function = sums(tmp_path, tapped=True)
    x, z = (np.random.default_rng(seed).standard_normal((4, 4), "float32") for seed in (1, 2))
    s, y = call_labelled(function, 0b111, "0=difference 1=relu 2=relu", [x, z], [(4, 4), (4, 4)])
    np.testing.assert_array_equal(s, x - z)
    np.testing.assert_array_equal(y, np.maximum(x - z, 0))
    (y,) = call_labelled(function, 0b110, "1=relu 0=relu", [x], [(4, 4)])
    np.testing.assert_array_equal(y, np.maximum(x, 0))


@pytest.mark.parametrize(
    ("label", "reason"),
    [
        ("relu", "no pattern of two-sums fits Add"),
        ("0=sum", "the composites are not all of the region"),
        ("0=sum 0=relu", "the composites are not all of the region"),
        ("9=sum", "is no label of a region of 2 nodes"),
    ],
)
def test_labels_that_do_not_fit_are_refused(tmp_path, label, reason):
    request = MeasurementRequest("main", 0b11, "two-sums", "", label)
    with pytest.raises(BackendError, match=reason):
        compile_request(TwoSumsBackend(), sums(tmp_path), request, BuildContext(1))


def test_a_backend_without_labels_says_so(tmp_path):
    request = MeasurementRequest("main", 0b1, "onnxruntime", "", "fast")
    with pytest.raises(BackendError, match="onnxruntime has no implementation fast"):
        compile_request(OnnxRuntimeBackend(), sums(tmp_path), request, BuildContext(1))
