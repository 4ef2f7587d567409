"""A flow's run connects only to Prefect's server, and writes only to its configured folders."""

import pytest

from tests.flows.conftest import OPTIONS
from tests.quiet import entry_points
from tests.quiet.models import tiny_model
from tests.quiet.trace import require_strace
from tests.servers.fixtures import or_skip

pytest.importorskip("prefect")


def test_a_flow_is_quiet(server, limit, tmp_path):
    with or_skip():
        require_strace()
    options = {**OPTIONS, "backends": ["onnxruntime"], "verify_s": 0.1}
    model = tiny_model(tmp_path / "tiny.onnx")
    watched = entry_points.flow(model, tmp_path / "given", server.ui, options, 0.5)
    actual = entry_points.watch(watched, tmp_path / "watch")
    assert actual.trace.code == 0, actual.trace.output
    assert '"state": "Completed"' in actual.trace.output or '"COMPLETED"' in actual.trace.output
    assert (actual.sockets, actual.files) == ((), ())
