"""What a compile and the commands leave for programs: the bundle's files, `--json`, exit codes."""

import contextlib
import io
import json
import re

import numpy as np
import pytest

from collage.cli import main
from collage.cli.errors import run_command
from collage.errors import (
    EXIT_CODES,
    BackendError,
    BundleError,
    ClusterError,
    DamagedError,
    DimensionError,
    GateError,
    MeasureError,
    ModelError,
    OptionError,
    RegistryError,
    SearchError,
    StoreError,
    UnprovenError,
)
from tests.report.sample import sample_report
from tests.support.golden import check_golden
from tests.support.golden_inputs import example_bundle, example_model
from tests.support.shapes import fits, shape_of

ERRORS = {
    "the model": ModelError, "a dimension": DimensionError, "an option": OptionError,
    "a backend": BackendError, "measuring": MeasureError, "the cluster": ClusterError,
    "the search": SearchError, "wrong numbers": GateError, "not proven": UnprovenError,
    "a bundle": BundleError, "the store": StoreError, "a damaged object": DamagedError,
    "the registry": RegistryError, "interrupted": KeyboardInterrupt, "unexpected": ZeroDivisionError,
}  # fmt: skip


def said(*arguments, code=0):
    """Run a command with --json; return the document."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main([*map(str, arguments), "--json"]) == code, out.getvalue()
    return json.loads(out.getvalue())


@pytest.fixture(scope="session")
def compiled(tmp_path_factory):
    """A bundle of one backend, and what `collage compile --json` says of it."""
    folder = tmp_path_factory.mktemp("compiled")
    document = said(
        "compile", example_model(folder / "small.onnx"), "-o", folder / "bundle",
        "--backends", "onnxruntime", "--threads", 1, "--workers", 1, "--effort", "quick",
        "--budget", "3s", "--verify", "0.2s", "--no-fallback", "--allow-slower",
        "--cache-dir", folder / "cache", "--quiet",
    )  # fmt: skip
    return folder, document


def read(compiled, name):
    return json.loads((compiled[0] / "bundle" / name).read_text())


def test_a_full_report_has_these_fields():
    report = json.loads(sample_report().to_json())
    check_golden("report.json", shape_of(report))


def test_a_compile_says_what_the_full_report_has(compiled):
    whole = shape_of(json.loads(sample_report().to_json()))
    assert compiled[1] == read(compiled, "summary.json")
    assert list(compiled[1]) == list(whole["summary"])
    assert fits(shape_of(compiled[1]), whole["summary"])
    assert fits(shape_of(read(compiled, "report.json")), whole)
    assert fits(shape_of(read(compiled, "plan.json")), whole["summary"]["plan"])


def test_manifests_have_these_fields(compiled):
    check_golden("manifest.json", shape_of(read(compiled, "manifest.json")))


def test_bundles_have_these_files(compiled):
    bundle = compiled[0] / "bundle"
    with np.load(bundle / "golden.npz") as arrays:
        check_golden(
            "bundle.json",
            {
                "files": sorted(file.name for file in bundle.iterdir()),
                "golden data": sorted(arrays.files),
            },
        )


def test_local_stores_of_a_compile(compiled):
    cache = compiled[0] / "cache"
    names = {str(file.relative_to(cache)) for file in cache.rglob("*") if file.is_file()}
    masked = {re.sub("[0-9a-f]{64}", "<digest>", name) for name in names}
    (peaks,) = (cache / "peaks").iterdir()
    check_golden(
        "local_store.json",
        {
            "files": sorted(re.sub(r"-\d+$", "-<user>", one) for one in masked),
            "peaks": shape_of(json.loads(peaks.read_text())),
        },
    )


def test_documents_of_the_commands(compiled, tmp_path):
    folder, _ = compiled
    bundle, store = folder / "bundle", tmp_path / "store"
    model = example_model(tmp_path / "small.onnx")
    published = example_bundle(tmp_path / "published")
    digest = said("publish", published, store, "--alias", "small/3/pool")["bundle"]
    documents = {
        "run": said("run", bundle),
        "bench": said("bench", bundle, "--seconds", "0.05"),
        "report": said("report", bundle),
        "explain": said("explain", bundle),
        "explain --node": said("explain", bundle, "--node", 0),
        "diff": said("diff", bundle, bundle),
        "publish": said("publish", published, store, "--alias", "small/other"),
        "fetch": said("fetch", store, "small/3/pool", "-o", tmp_path / "fetched"),
        "aliases": said("aliases", store),
        "alias": said("alias", store, "small/third", digest),
        "unalias": said("unalias", store, "small/third"),
        "gc": said("gc", store),
        "register": said("register", tmp_path / "models", "small", "3", model),
        "backends": said("backends"),
        "candidates": said("candidates", model, "--backends", "onnxruntime"),
        "refusal": said("compile", tmp_path / "absent.onnx", code=2),
    }
    for name in ("small/3/pool", "small/other"):
        said("unalias", store, name)
    documents["unpublish"] = said("unpublish", store, digest)
    shapes = {name: shape_of(one) for name, one in documents.items()}
    whole = shape_of(json.loads(sample_report().to_json()))
    assert fits(shapes.pop("report"), whole["summary"])
    for name in ("explain", "explain --node", "diff"):  # what lists hold depends on measurements
        shapes[name] = dict.fromkeys(documents[name], "*")
    shapes["backends"]["backends"] = _merged(documents["backends"]["backends"])
    check_golden("commands.json", shapes)


def _merged(rows):
    """The fields of all rows together."""
    return [{key: shape_of(one) if key != "libraries" else {} for key, one in rows[0].items()}]


def test_names_of_commands_and_options():
    found = {}
    (listed,) = re.findall(r"\ncommands:\n(.*?)\n\n", _help(), re.DOTALL)
    for name in re.findall(r"^    ([a-z]+)", listed, re.MULTILINE):
        found[name] = sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", _help(name))))
    check_golden("options.json", found)


def _help(*command):
    with contextlib.redirect_stdout(io.StringIO()) as out, pytest.raises(SystemExit):
        main([*command, "--help"])
    return out.getvalue()


def test_exit_codes(capsys):
    found = {"meanings": sorted(EXIT_CODES)}
    for name, kind in ERRORS.items():

        def act(kind=kind):
            raise kind("what happened; what to do")

        code = run_command(act, as_json=True)
        assert shape_of(json.loads(capsys.readouterr().out)) == {
            "error": {"exit_code": "number", "reason": "text", "advice": "text"}
        }
        found[name] = code
    check_golden("exit_codes.json", found)
