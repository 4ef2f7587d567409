"""A folder of models through the real flow: one search for each function, one bundle."""

import re

import pytest

pytest.importorskip("prefect")

from collage.pipeline.request import RequestOptions
from collage.runtime.manifest import parse_manifest
from collage.store import open_store
from collage.store.aliases import read_alias
from collage.store.manifests import read_bundle
from tests.flows.conftest import OPTIONS
from tests.support.entry_models import write_net

pytestmark = pytest.mark.full

FUNCTIONS = ("decoder", "decoder_1", "encoder")


def test_each_function_has_a_search_and_one_bundle(server, client, limit, settings, tmp_path):
    from prefect.client.schemas.filters import FlowRunFilter

    from flows.optimize import optimize_model

    speech = tmp_path / "speech"
    speech.mkdir()
    for name, last in (("encoder", "Tanh"), ("decoder", "Abs")):
        write_net(speech / f"{name}.onnx", last)
    shapes = ({"encoder/x": (4, 48), "decoder/x": (4, 48)}, {"decoder/x": (6, 48)})
    options = RequestOptions(**OPTIONS, shapes=shapes)
    state = optimize_model(f"{speech}/", None, ["local"], options, return_state=True)
    assert state.is_completed(), state
    (outcome,) = state.result()
    runs = client.read_task_runs(
        flow_run_filter=FlowRunFilter(id={"any_": [state.state_details.flow_run_id]})
    )
    searched = {
        found.group(1) for run in runs if (found := re.match(r"search (\S+) on ", run.name))
    }
    assert searched == set(FUNCTIONS)
    assert outcome.status in ("optimized", "not-faster"), outcome
    if outcome.status == "optimized":  # a busy machine may leave the proof open
        store = open_store(settings.store)
        assert read_alias(store, outcome.alias).bundle == outcome.bundle
        manifest = parse_manifest(read_bundle(store, outcome.bundle), "the bundle")
        assert [signature.function for signature in manifest.functions] == list(FUNCTIONS)
        assert manifest.entries == ("decoder", "encoder")
