"""The documents' lines of `collage` on models so small that all of them take seconds.

All run in one folder, as a reader would do it; what a line needs runs before it, once.
"""

import os
import shlex
import shutil
import subprocess

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from collage.cli import main
from tests.command_lines.listed import COMPILE, COMPILE_OTHER, RUN, Run
from tests.servers.binaries import Unavailable
from tests.servers.fixtures import or_skip

pytestmark = pytest.mark.full

QUICK = {
    "compile": "--backends onnxruntime --threads 1 --workers 1 --budget 2s --refine 0s --verify 0.05s"
    " --cache-dir cache --quiet",
    "bench": "--seconds 0.05s",
}
"""Options that make a command short on these models."""


def write_model(path, shape, input_name="x"):
    names = (input_name, "y")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in names)
    nodes = [
        helper.make_node("Relu", [input_name], ["a"]),
        helper.make_node("Sigmoid", ["a"], ["y"]),
    ]
    onnx.save(helper.make_model(helper.make_graph(nodes, "small", [x], [y])), path)


class Place:
    """A folder with models, where lines run once."""

    def __init__(self):
        self._output = {}
        self.digests = {}

    def run(self, line, capfd):
        """Run a line after those that it needs; return what it printed."""
        if line not in self._output:
            run = RUN.get(line, Run())
            for before in run.after:
                self.run(before, capfd)
            words = [self._word(run.change.get(word, word)) for word in shlex.split(line)]
            capfd.readouterr()
            code = self._call(words)
            self._output[line] = output = capfd.readouterr()
            assert code == 0, f"{shlex.join(words)}: {output.err}"
            if words[1] == "publish":
                self.digests[words[2]] = output.out.split()[0]
        return self._output[line].out + self._output[line].err

    def _word(self, word):
        """Put in what a reader puts in for a placeholder."""
        names = {"DIGEST": "bundle", "BAD": "det.collage"}
        return self.digests[names[word]] if word in names else word

    def _call(self, words):
        program, command, *_ = words
        if program == "collage":
            options = QUICK.get(command, "").split()
            if command == "compile" and "--tune" not in words:
                options += ["--tune", "0s"]
            return main([*words[1:], *options])
        if shutil.which(program) is None:
            raise Unavailable(f"{program} is not installed: apt-get install {program}")
        return subprocess.run(words, check=False).returncode


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder, before = tmp_path_factory.mktemp("place"), os.getcwd()
    os.chdir(folder)
    write_model("model.onnx", [64, 4096])
    write_model("encoder.onnx", [64, 4096])
    write_model("decoder.onnx", [64, 2048])
    (folder / "models" / "speech").mkdir(parents=True)
    write_model("models/speech/encoder.onnx", ["batch", 8192])
    write_model("models/speech/decoder.onnx", [1, "length", 64], input_name="past")
    write_model("det.onnx", [1, 3, "height", "width"])
    write_model("rec.onnx", [1, 3, "height", "width"])
    (folder / "photos").mkdir()
    np.savez("photos/first.npz", x=np.ones((1, 3, 48, 320), np.float32))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache-home"))
        yield Place()
    os.chdir(before)


@pytest.mark.parametrize("line", RUN)
def test_the_line_runs(place, line, capfd):
    with or_skip():
        said = place.run(line, capfd)
    assert RUN[line].says in said


def test_two_shape_sets_run_and_serve_each(place, capfd):
    """The line that makes one bundle of two shape sets ends in a bundle that takes both."""
    import numpy as np

    import collage

    (line,) = [line for line in RUN if line.startswith("collage compile rec.onnx --shape")]
    place.run(line, capfd)
    bundle = collage.load("rec.collage")
    for width in (256, 384):
        x = np.random.default_rng(width).standard_normal((1, 3, 64, width)).astype(np.float32)
        expected = 1 / (1 + np.exp(-np.maximum(x, 0)))
        np.testing.assert_allclose(bundle.run({"x": x})["y"], expected, rtol=1e-4, atol=1e-5)


def test_the_lines_of_the_readme_share_two_bundles():
    assert {COMPILE, COMPILE_OTHER} < RUN.keys()
