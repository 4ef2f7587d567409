"""Nothing leaves the machine: each entry point speaks to nobody and writes nowhere that it was not told of.

`python -m tests.quiet --seconds 60` watches them longer. The flows are watched where their server is:
`tests/flows/test_quiet.py`.
"""

import pytest

from tests.quiet import entry_points
from tests.quiet.entry_points import watch
from tests.quiet.models import tiny_model
from tests.quiet.shards import put_batch
from tests.quiet.trace import require_strace
from tests.servers.fixtures import or_skip
from tests.servers.receiver import PrefectRecorder

pytestmark = pytest.mark.full

SECONDS = 0.5


def require_quiet(watched, folder, code=0):
    behaviour = watch(watched, folder)
    assert behaviour.trace.code == code, behaviour.trace.output
    assert (behaviour.sockets, behaviour.trace.names, behaviour.files) == ((), frozenset(), ())


@pytest.fixture(scope="module")
def strace():
    with or_skip():
        require_strace()


@pytest.fixture(scope="module")
def model(strace, tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("model") / "tiny.onnx")


@pytest.fixture(scope="module")
def bundle(model, tmp_path_factory):
    """A bundle with a kernel of ONNX Runtime; its compile, which is watched too, compares with OpenVINO."""
    folder = tmp_path_factory.mktemp("compiled")
    watched = entry_points.compile_(model, folder / "bundle", SECONDS)
    require_quiet(watched, folder / "watch")
    return folder / "bundle"


def test_onnxruntime_without_collage_reports(strace, tmp_path):
    """The control: the watch finds the collector, and the files that are kept for it."""
    folder = tmp_path / "watch"
    behaviour = watch(entry_points.onnxruntime_alone(folder), folder)
    assert behaviour.trace.code == 0, behaviour.trace.output
    assert any("Microsoft/DeveloperTools" in file for file in behaviour.files)
    assert behaviour.sockets, "nobody was spoken to, within 20 s"
    assert any("microsoft" in name for name in behaviour.trace.names)


def test_a_compile_is_quiet(bundle):
    assert (bundle / "manifest.json").is_file()


def test_loading_and_running_is_quiet(bundle, tmp_path):
    require_quiet(entry_points.load(bundle, SECONDS), tmp_path / "watch")


def test_serving_is_quiet(bundle, tmp_path):
    require_quiet(entry_points.serve(bundle, SECONDS), tmp_path / "watch")


def test_the_cpp_example_is_quiet(bundle, tmp_path):
    program = entry_points.built_example(tmp_path)
    require_quiet(entry_points.cpp(program, bundle, SECONDS), tmp_path / "watch")


def test_measuring_in_a_pod_is_quiet(model, tmp_path):
    store = tmp_path / "store"
    batch = put_batch(model, store, size=2)
    require_quiet(entry_points.measure(store, batch, SECONDS), tmp_path / "watch")


def test_the_receiver_speaks_to_prefect_alone(model, tmp_path):
    prefect = PrefectRecorder()
    (tmp_path / "receiver").mkdir()
    watched = entry_points.receiver(tmp_path / "receiver", prefect, SECONDS)
    require_quiet(
        watched, tmp_path / "watch", code=-15
    )  # uvicorn ends by the signal that it was sent
    prefect.close()
