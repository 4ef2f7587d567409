"""Backends of users, as `docs/add-a-backend.md` shows them, without touching Collage."""

import json
import subprocess
import sys
import tomllib

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import collage
from collage.backends.registry import available_backends, with_rule
from collage.cli import main
from collage.errors import BundleError, OptionError
from collage.frontend import import_model
from collage.pipeline import bundle_stage
from collage.rules import DFPattern, find_candidates, op
from tests.backends.faulty import FaultyBackend
from tests.documents import ROOT, shown_files

pytestmark = pytest.mark.full

FILES = shown_files("docs/add-a-backend.md")
X_SHAPE = (4, 32)


def save_model(path, nodes, weights=(), x=X_SHAPE, y=X_SHAPE):
    rng = np.random.default_rng(5)
    initializers = [
        numpy_helper.from_array((rng.standard_normal(shape) / 4).astype("float32"), name)
        for name, shape in weights
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, y)]
    graph = helper.make_graph(nodes, "model", inputs, outputs, initializers)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    return path


def save_mlp(path):
    """MatMul and Add with relu, Add in the other order, and a transposed Gemm."""
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"]),
        helper.make_node("Add", ["a", "b1"], ["b"]),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("MatMul", ["c", "w2"], ["d"]),
        helper.make_node("Add", ["b2", "d"], ["e"]),
        helper.make_node("Gemm", ["e", "w3", "b3"], ["y"], transB=1),
    ]
    weights = [
        ("w1", (32, 64)), ("b1", (64,)), ("w2", (64, 48)), ("b2", (48,)), ("w3", (10, 48)),
        ("b3", (10,)),
    ]  # fmt: skip
    return save_model(path, nodes, weights, y=(4, 10))


def quick(folder, *backends):
    return collage.Options(
        backends=backends,
        threads=1,
        cache_dir=folder / "store",
        verify_s=0.2,
        fallback=False,
        allow_slower=True,
        measure_budget_s=30,
        workers=1,
    )


def expected_output(model, x):
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    return session.run(["y"], {"x": x})[0]


def measured(report):
    """Backend and nodes of every candidate with a valid cost."""
    (function,) = report.functions
    return {
        (measured_region.backend, measured_region.nodes)
        for region in function.regions
        for measured_region in (*region.alternatives, region)
        if getattr(measured_region, "state", "valid") == "valid"
    }


def backends_of(summary):
    return {region.backend for region in summary.plan}


SERVE = """
import sys, numpy as np, collage
x = np.random.default_rng(3).standard_normal((4, 32)).astype(np.float32)
np.savez(sys.argv[2], x=x, **collage.load(sys.argv[1]).run({"x": x}))
print(sorted({"tvm", "onnx", "pydantic", "openblas_backend", "collage.backends"} & set(sys.modules)))
"""


def serve(bundle, folder):
    """Run the bundle in a process that finds neither a compiler nor the user's module."""
    out = folder / "served.npz"
    done = subprocess.run(
        [sys.executable, "-c", SERVE, str(bundle), str(out)],
        env={"PATH": str(folder / "nothing"), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "[]", done.stderr
    with np.load(out) as served:
        return served["x"], served["y"]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The tutorial's package, as pip installs it, on the path of this process and its children."""
    folder = tmp_path_factory.mktemp("site")
    project = tomllib.loads(FILES["pyproject.toml"])["project"]
    for module in ("openblas_backend.py", "silu_backend.py", "own_rule.py"):
        (folder / module).write_text(FILES[module])
    info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    named = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (info / "METADATA").write_text(named)
    entries = project["entry-points"]["collage.backends"]
    lines = [f"{name} = {value}\n" for name, value in entries.items()]
    (info / "entry_points.txt").write_text("[collage.backends]\n" + "".join(lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield folder


@pytest.fixture
def reports(monkeypatch):
    """What every compile of the test reports."""
    made, build = [], bundle_stage.build_report
    monkeypatch.setattr(
        bundle_stage,
        "build_report",
        lambda *a, **named: made.append(build(*a, **named)) or made[-1],
    )
    return made


@pytest.fixture(scope="module")
def mlp(tmp_path_factory):
    return save_mlp(tmp_path_factory.mktemp("mlp") / "mlp.onnx")


@pytest.fixture(scope="module")
def openblas_alone(site, mlp, tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    summary = collage.compile(mlp, quick(folder, "openblas"), output=folder / "bundle")
    return summary, folder / "bundle"


def test_an_installed_backend_is_listed(site, capsys):
    assert main(["backends", "--json"]) == 0
    listed = {
        backend["name"]: backend for backend in json.loads(capsys.readouterr().out)["backends"]
    }
    assert listed["openblas"]["available"]
    assert listed["openblas"]["style"] == "library"
    assert set(listed["openblas"]["libraries"]) == {"openblas", "compiler"}


def test_it_can_do_a_model_alone(openblas_alone):
    summary, _ = openblas_alone
    assert backends_of(summary) == {"openblas"}
    assert [region.nodes for region in summary.plan] == [(0, 1, 2), (3, 4), (5,)]
    assert summary.candidates.invalid == 0


def test_a_second_compile_measures_nothing(openblas_alone, mlp):
    summary, bundle = openblas_alone
    options = quick(bundle.parent, "openblas")
    again = collage.compile(mlp, options, output=bundle.parent / "again")
    assert again.candidates.measured == 0
    assert again.candidates.cached == summary.candidates.measured
    assert again.plan == summary.plan


def test_the_bundle_serves_without_compiler_and_backend(openblas_alone, mlp, tmp_path):
    _, bundle = openblas_alone
    x, y = serve(bundle, tmp_path)
    np.testing.assert_allclose(y, expected_output(mlp, x), rtol=1e-4, atol=1e-5)


def test_the_bundle_names_the_library(openblas_alone):
    _, bundle = openblas_alone
    library = json.loads((bundle / "manifest.json").read_text())["libraries"]["openblas"]
    assert library["distribution"] == "scipy-openblas32"
    assert library["file"] == "libscipy_openblas.so"
    assert f'"version": "{library["version"]}"' in (ROOT / "docs/add-a-backend.md").read_text()


def test_a_machine_without_the_library_is_told_what_to_install(openblas_alone, tmp_path):
    _, bundle = openblas_alone
    text = (bundle / "manifest.json").read_text()
    for file in bundle.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    changed = text.replace('"scipy-openblas32"', '"no-such-blas"').replace(
        '"openblas": {', '"other": {'
    )
    (tmp_path / "manifest.json").write_text(changed)
    with pytest.raises(
        BundleError, match="'other' is not installed: run `pip install 'no-such-blas=="
    ):
        collage.load(tmp_path)


def test_the_bundle_can_be_compared_with_the_original(openblas_alone, mlp, capsys):
    _, bundle = openblas_alone
    arguments = ["bench", str(bundle), "--model", str(mlp), "--seconds", "0.2", "--json"]
    assert main(arguments) == 0
    latencies = json.loads(capsys.readouterr().out)["functions"]["main"]
    assert latencies["collage"]["seconds"] > 0
    assert latencies["collage"]["times"] == 1
    assert latencies["onnxruntime"]["times"] > 0


def test_it_competes_with_the_built_in_ones(site, mlp, tmp_path, reports):
    options = quick(tmp_path, "openblas", "onnxruntime")
    summary = collage.compile(mlp, options, output=tmp_path / "bundle")
    assert summary.backends == ("openblas", "onnxruntime")
    assert ("openblas", (0, 1, 2)) in measured(reports[0])
    assert {backend for backend, _ in measured(reports[0])} >= {"openblas", "onnxruntime"}
    collage.load(tmp_path / "bundle").check()


def test_sixteen_lines_make_a_backend(site, tmp_path):
    assert sum(1 for line in FILES["silu_backend.py"].splitlines() if line.strip()) == 16
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["s"]),
        helper.make_node("Mul", ["s", "x"], ["y"]),
    ]
    model = save_model(tmp_path / "silu.onnx", nodes)
    options = quick(tmp_path, "silu_backend:SiluBackend")
    summary = collage.compile(model, options, output=tmp_path / "bundle")
    assert [(region.backend, region.nodes) for region in summary.plan] == [("silu", (0, 1))]
    x, y = serve(tmp_path / "bundle", tmp_path)
    np.testing.assert_allclose(y, expected_output(model, x), rtol=1e-4, atol=1e-5)


def test_a_rule_of_the_users_changes_what_is_measured(site, mlp, tmp_path, reports):
    import own_rule

    function = import_model(mlp, work_dir=tmp_path).functions[0]
    stock, ruled = available_backends(("onnxruntime",))[0], own_rule.BACKENDS[0]
    restricted, unrestricted = (
        {
            candidate.inside
            for candidate in find_candidates(function, [backend])
            if not candidate.is_host
        }
        for backend in (ruled, stock)
    )
    assert restricted == {1 << node for node in range(6)} | {0b11, 0b111, 0b11000}
    assert 0b111111 in unrestricted

    summary = collage.compile(mlp, quick(tmp_path, ruled), output=tmp_path / "ruled")
    assert backends_of(summary) == {"onnxruntime"}
    assert max(len(region.nodes) for region in summary.plan) <= 3
    assert measured(reports[0]) >= {("onnxruntime", (0, 1, 2)), ("onnxruntime", (3, 4))}
    collage.load(tmp_path / "ruled").check()
    # The same store: the search that ended under one rule says nothing about another rule's candidates.
    again = collage.compile(mlp, quick(tmp_path, "onnxruntime"), output=tmp_path / "stock")
    assert again.candidates.measured > 0


def test_faults_cost_a_candidate_and_nothing_more(tmp_path, reports):
    operators = ("Relu", "Sigmoid", "Tanh", "Softplus", "Softsign")
    names = ["x", "v1", "v2", "v3", "v4", "y"]
    nodes = [
        helper.make_node(operator, [source], [target])
        for operator, source, target in zip(operators, names, names[1:], strict=False)
    ]
    model = save_model(tmp_path / "activations.onnx", nodes)
    options = quick(tmp_path, FaultyBackend(), "onnxruntime")
    summary = collage.compile(model, options, output=tmp_path / "bundle")
    assert backends_of(summary) == {"onnxruntime"}
    reasons = {candidate.nodes: candidate.reason for candidate in reports[0].functions[0].invalid}
    assert reasons[0,] == "crashed: SIGSEGV"
    assert "wrong numbers in output 0" in reasons[1,]
    assert "error: " in reasons[2,]
    assert "no_such_name" in reasons[2,]
    assert "undefined symbol: no_such_function" in reasons[3,]
    assert "returned 7" in reasons[4,]
    collage.load(tmp_path / "bundle").check()


def test_where_no_backend_takes_a_node_each_says_why(site, tmp_path, capsys):
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Softmax", ["m"], ["y"]),
    ]
    model = save_model(tmp_path / "softmax.onnx", nodes, [("w", (32, 32))])
    arguments = [
        "compile",
        str(model),
        "-o",
        str(tmp_path / "b"),
        "--cache-dir",
        str(tmp_path / "s"),
    ]
    assert main([*arguments, "--quiet", "--backends", "openblas,silu_backend:SiluBackend"]) == 3
    assert capsys.readouterr().err.splitlines() == [
        "collage: no plan covers node 1 'Softmax_1' (Softmax): no backend takes it; "
        "add onednn or onnxruntime or openvino or tvm to --backends",
        "  openblas: no pattern of openblas takes Softmax alone",
        "  silu: no pattern of silu takes Softmax alone",
    ]


def test_what_workers_cannot_import_is_refused_at_once(mlp, tmp_path):
    class Local(FaultyBackend):
        pass

    with pytest.raises(
        OptionError, match=r"cannot import .*Local; write the class at the top level"
    ):
        collage.compile(mlp, quick(tmp_path, Local()), output=tmp_path / "bundle")


UNUSABLE = [
    (("no_such_module:Backend",), "cannot be used here: does not load: ModuleNotFoundError"),
    (("tests.backends.faulty:BODIES",), "does not load: TypeError"),
    (("json:JSONDecoder",), "JSONDecoder is no Backend"),
    ((FaultyBackend(), "tests.backends.faulty:FaultyBackend"), "two backends are called 'faulty'"),
]


@pytest.mark.parametrize(("chosen", "message"), UNUSABLE)
def test_what_is_no_backend_is_refused(chosen, message):
    with pytest.raises(OptionError, match=message):
        available_backends(chosen)


ENTRIES = {
    "broken": ("no_such_module:Backend", "broken", "ModuleNotFoundError"),
    "renamed": ("tests.backends.faulty:FaultyBackend", "renamed", "calls itself 'faulty'"),
    "raising": ("tests.backends.faulty:RaisingBackend", "raising", "nobody expects this"),
    "tvm": ("tests.backends.faulty:FaultyBackend", "tvm (stranger)", "another one has this name"),
}


def test_bad_entry_points_are_listed_with_their_reasons(tmp_path, monkeypatch, capsys):
    info = tmp_path / "stranger-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1\n")
    lines = [f"{name} = {value}\n" for name, (value, _, _) in ENTRIES.items()]
    (info / "entry_points.txt").write_text("[collage.backends]\n" + "".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["backends", "--json"]) == 0
    listed = {
        backend["name"]: backend for backend in json.loads(capsys.readouterr().out)["backends"]
    }
    assert listed["tvm"]["available"]
    for _, name, reason in ENTRIES.values():
        assert not listed[name]["available"]
        assert reason in listed[name]["reason"]


def test_with_rule_leaves_the_backend_as_it_was(mlp, tmp_path):
    function = import_model(mlp, work_dir=tmp_path).functions[0]
    backend = available_backends(("onnxruntime",))[0]
    rule = DFPattern("relu", op("Relu"))
    own = backend.rule(function)
    changed = with_rule(backend, lambda _: rule)
    assert changed is not backend
    assert backend.rule(function) == own != rule
    assert changed.rule(function) is rule
