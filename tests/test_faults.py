"""Faults through the real pipeline: backends that misbehave, kills, and disks that are full."""

import functools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import collage.cli.compile
from collage.cli import main
from collage.options import Options

pytestmark = pytest.mark.full

BACKENDS = '''
import os, signal, sys, time
import numpy as np
from onnx import helper, numpy_helper
from collage.backends.base import PluginKernel
from collage.backends.cpu.onnxruntime import OnnxRuntimeBackend
from collage.frontend.region import region_onnx
from collage.runtime.blob import pack

IN_WORKER = "--requests" in sys.argv

class Faulty(OnnxRuntimeBackend):
    variants = ("",)
    def unsupported(self, function, node):
        return None if function.graph.nodes[node].op == "Sigmoid" else "only Sigmoid"
    def compile(self, function, nodes, context, variant=""):
        self.fail()
        return super().compile(function, nodes, context, variant)

class Crashing(Faulty):
    name = "crashing"
    def fail(self):
        os.kill(os.getpid(), signal.SIGSEGV)

class Hanging(Faulty):
    name = "hanging"
    def fail(self):
        time.sleep(1000)

class Hungry(Faulty):
    name = "hungry"
    def fail(self):
        eaten = []
        while True:
            eaten.append(np.ones(1 << 26, np.uint8))

def lie(function, nodes):
    model = region_onnx(function, nodes)
    name = model.graph.output[0].name
    for node in model.graph.node:
        node.output[:] = ["true" if value == name else value for value in node.output]
        node.input[:] = ["true" if value == name else value for value in node.input]
    model.graph.initializer.append(numpy_helper.from_array(np.float32(1.5), "factor"))
    model.graph.node.append(helper.make_node("Mul", ["true", "factor"], [name]))
    blob = pack({"threads": 1}, [np.frombuffer(model.SerializeToString(), np.uint8)])
    return PluginKernel("onnxruntime", blob, libraries=frozenset({"onnxruntime"}))

class Lying(Faulty):
    name = "lying"
    def compile(self, function, nodes, context, variant=""):
        return lie(function, nodes)

class TwoFaced(OnnxRuntimeBackend):
    """Right in the worker, wrong in the executable: only the gate can notice."""
    name = "two-faced"
    variants = ("",)
    def compile(self, function, nodes, context, variant=""):
        if IN_WORKER:
            return super().compile(function, nodes, context, variant)
        return lie(function, nodes)
'''
NAMES = {"crashing": "Crashing", "hanging": "Hanging", "hungry": "Hungry", "lying": "Lying",
         "two-faced": "TwoFaced"}  # fmt: skip
REASONS = {
    "crashing": "crashed: SIGSEGV",
    "hanging": "timed out after 4 s",
    "hungry": "GiB of memory",
    "lying": "wrong numbers",
}
QUICK = functools.partial(Options, verify_s=0.1, end_to_end_plans=1)


@pytest.fixture
def model(tmp_path):
    weight = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[3, 3]),
        helper.make_node("Sigmoid", ["c"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 12, 12])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 10, 10])
    graph = helper.make_graph(nodes, "tiny", [x], [y], [numpy_helper.from_array(weight, "w")])
    opset = [helper.make_opsetid("", 17)]
    path = tmp_path / "tiny.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), path)
    return path


@pytest.fixture
def user_backends(tmp_path, monkeypatch):
    """Install the backends above as a package would; worker processes see it through sys.path."""
    folder = tmp_path / "site"
    info = folder / "faulty-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "faulty_backends.py").write_text(BACKENDS)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty\nVersion: 1.0\n")
    lines = [f"{name} = faulty_backends:{class_name}" for name, class_name in NAMES.items()]
    (info / "entry_points.txt").write_text("[collage.backends]\n" + "\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "faulty_backends", raising=False)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(collage.cli.compile, "Options", QUICK)


def arguments(tmp_path, model, *options):
    return ["compile", str(model), "-o", str(tmp_path / "bundle"), "--cache-dir",
            str(tmp_path / "store"), "--threads", "1", "--budget", "20s", *options]  # fmt: skip


def cost_lines(tmp_path):
    return [
        json.loads(line[9:])
        for file in (tmp_path / "store" / "costs").glob("*.jsonl")
        if file.stem != "any"
        for line in file.read_bytes().splitlines()
    ]


def test_faulty_backends_give_invalid_costs_only(tmp_path, model, user_backends, capsys):
    options = ["--timeout", "4s", "--memory", "768MiB", "--quiet", "--json"]
    names = ",".join(["onnxruntime", *REASONS])
    assert main(arguments(tmp_path, model, "--backends", names, *options)) == 0
    facts = json.loads(capsys.readouterr().out)
    assert {region["backend"] for region in facts["plan"]} == {"onnxruntime"}
    assert facts["candidates"]["invalid"] >= len(REASONS)
    page = (tmp_path / "bundle" / "report.html").read_text()
    reasons = [line["reason"] for line in cost_lines(tmp_path) if "reason" in line]
    for reason in REASONS.values():
        assert any(reason in text for text in reasons), (reason, reasons)
        assert reason in page
    assert main(["run", str(tmp_path / "bundle")]) == 0


def test_a_plan_that_is_wrong_only_when_whole_is_refused(tmp_path, model, user_backends, capsys):
    assert main(arguments(tmp_path, model, "--backends", "two-faced", "--quiet")) == 4
    assert "wrong numbers" in capsys.readouterr().err
    assert not (tmp_path / "bundle").exists()
    assert not list((tmp_path / "store" / "tmp").iterdir())


COMPILE = """
import functools, sys
import collage.cli.compile, collage.report.terminal as terminal
from tests.test_faults import QUICK
collage.cli.compile.Options = QUICK
real = terminal.TerminalProgress.stage
def stage(self, name, *rest):
    print(name, flush=True)
    return real(self, name, *rest)
terminal.TerminalProgress.stage = stage
import collage.pipeline.search_stage as pipeline
search = pipeline.search_function
def search_and_tell(*given, **named):
    found = search(*given, **named)
    plans = [[(o.nodes, o.backend) for o in one.plan.options] for one in found.plans]
    print("plans", plans, flush=True)
    return found
pipeline.search_function = search_and_tell
sys.exit(collage.cli.main(sys.argv[1:]))
"""


def children_of(pid):
    children = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            children.append(int(folder.name))
    return children


def runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def killed_at(tmp_path, model, stage, delay_s):
    """Start a compile, kill it in `stage`, and return its processes and the plans that it found."""
    plans = []
    command = arguments(tmp_path, model, "--backends", "onnxruntime", "--quiet")
    with subprocess.Popen(
        [sys.executable, "-c", COMPILE, *command], stdout=subprocess.PIPE, text=True
    ) as parent:
        for line in parent.stdout:
            if line.startswith("plans"):
                plans.append(line)
            if line.strip() == stage:
                break
        time.sleep(delay_s)
        children = children_of(parent.pid)
        assert parent.poll() is None, "it ended before it was killed"
        parent.send_signal(signal.SIGKILL)
    return children, plans


def test_a_compile_killed_at_any_stage_is_resumed(tmp_path, model, capsys):
    all_children, plans = [], []
    for stage, delay_s in [("import", 0.0), ("measure", 2.0), ("assemble", 0.0), ("verify", 0.5)]:
        children, leftover_plans = killed_at(tmp_path, model, stage, delay_s)
        all_children += children
        plans += leftover_plans
    assert len(plans) == 2
    assert plans[0] == plans[1], "a resumed search found other plans"
    assert all_children, "no worker was alive at any kill"
    deadline = time.monotonic() + 10
    while any(map(runs, all_children)):
        assert time.monotonic() < deadline, "orphans are left"
        time.sleep(0.05)
    options = ["--backends", "onnxruntime", "--quiet", "--json"]
    assert not (tmp_path / "bundle").exists()
    assert main(arguments(tmp_path, model, *options)) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["candidates"]["measured"] == 0
    keys = [line["key"] for line in cost_lines(tmp_path) if "key" in line]
    assert len(keys) == len(set(keys)), "something was measured twice"
    assert not list((tmp_path / "store" / "tmp").iterdir())
    assert not list(tmp_path.glob(".bundle*"))


def test_a_full_disk_under_the_store_is_exit_code_6(tmp_path, model):
    limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))\n"
    done = subprocess.run(
        [sys.executable, "-c", limited + COMPILE, *arguments(tmp_path, model, "--quiet")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 6, done.stderr
    assert "--cache-dir" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "bundle").exists()


LINKER = """
import resource, signal, sys
import collage.assemble.executable as executable
compile_module = executable.tvm.compile
class Small:
    \"\"\"A disk on which only small files fit, from the linker's first byte on.\"\"\"
    def __init__(self, made):
        self.made = made
    def export_library(self, *given, **named):
        import tvm.support.cc as cc
        linking = cc._linux_compile
        def limited(*given, **named):
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, 1 << 12))
            return linking(*given, **named)
        cc._linux_compile = limited
        return self.made.export_library(*given, **named)
executable.tvm.compile = lambda *given, **named: Small(compile_module(*given, **named))
"""


def test_a_linker_that_finds_the_disk_full_is_exit_code_6(tmp_path, model):
    command = arguments(tmp_path, model, "--backends", "onnxruntime", "--quiet")
    done = subprocess.run(
        [sys.executable, "-c", LINKER + COMPILE, *command],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 6, done.stderr
    assert "cannot be written" in done.stderr
    assert "--cache-dir" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "bundle").exists()
    assert not list((tmp_path / "store" / "tmp").iterdir())


def test_bad_input_is_exit_code_2_and_says_what_to_do(tmp_path, model, capsys):
    truncated = tmp_path / "truncated.onnx"
    truncated.write_bytes(model.read_bytes()[:200])
    external = tmp_path / "external.onnx"
    onnx.save(onnx.load(model), external, save_as_external_data=True, location="weights.bin",
              size_threshold=0)  # fmt: skip
    (tmp_path / "weights.bin").unlink()
    for options, words in [
        ([truncated], "truncated"),
        ([external], "weights.bin"),
        ([model, "--dim", "batch=1"], "batch"),
        ([model, "--backends", "tensorflow"], "onnxruntime"),
    ]:
        assert main(arguments(tmp_path, *options, "--quiet")) == 2
        assert words in capsys.readouterr().err
        assert not (tmp_path / "bundle").exists()


def test_a_missing_library_is_said_and_stops_nothing(tmp_path, model, monkeypatch, capsys):
    monkeypatch.setenv("COLLAGE_LIB_OPENVINO", "/nowhere/libopenvino_c.so")
    assert main(["backends", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["backends"]}
    assert "COLLAGE_LIB_OPENVINO" in rows["openvino"]["reason"]
    assert rows["onnxruntime"]["available"]
    assert main(arguments(tmp_path, model, "--backends", "openvino", "--quiet")) == 2
    assert "COLLAGE_LIB_OPENVINO" in capsys.readouterr().err
    assert main(arguments(tmp_path, model, "--quiet", "--json")) == 0
    facts = json.loads(capsys.readouterr().out)
    assert "openvino" not in facts["backends"]


def test_a_worker_killed_in_the_middle_costs_nothing(tmp_path, model):
    command = arguments(tmp_path, model, "--backends", "onnxruntime", "--quiet")
    with subprocess.Popen(
        [sys.executable, "-c", COMPILE, *command], stdout=subprocess.PIPE, text=True
    ) as parent:
        for line in parent.stdout:
            if line.strip() == "measure":
                break
        while not cost_lines(tmp_path) and parent.poll() is None:
            time.sleep(0.005)
        workers = children_of(parent.pid)
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        parent.stdout.read()
    assert workers
    assert parent.returncode == 0
    assert not [line for line in cost_lines(tmp_path) if "SIGKILL" in line.get("reason", "")]
    assert main(["run", str(tmp_path / "bundle")]) == 0


def test_a_full_disk_publishes_and_loses_nothing(tmp_path, model, monkeypatch, capsys):
    command = arguments(tmp_path, model, "--backends", "onnxruntime", "--quiet", "--json")

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("collage.bundle.save.write_durably", full)
        assert main(command) == 5
    assert "--output" in json.loads(capsys.readouterr().out)["error"]["reason"]
    assert not (tmp_path / "bundle").exists()
    assert not list(tmp_path.glob(".bundle*"))
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["candidates"]["measured"] == 0
