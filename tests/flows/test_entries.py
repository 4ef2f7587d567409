"""A folder of models through the real flow: one search for each function, one bundle."""

import re
from collections import Counter

import numpy as np
import pytest

pytest.importorskip("prefect")

import collage
from collage.pipeline.request import RequestOptions
from collage.runtime.manifest import parse_manifest
from collage.store import open_store
from collage.store.aliases import read_alias
from collage.store.bundles import fetch_bundle
from collage.store.manifests import read_bundle
from tests.flows.conftest import OPTIONS
from tests.support.costs import cost_lines
from tests.support.entry_models import write_net
from tests.support.original_models import sequence_model, text_model

pytestmark = pytest.mark.full

FUNCTIONS = ("decoder", "decoder_1", "encoder")


def optimize(address, **options):
    """Run the flow on the models at an address; return its state and the names of searched functions."""
    from flows.optimize import optimize_model

    request = RequestOptions(**{**OPTIONS, **options})
    return optimize_model(str(address), None, ["local"], request, return_state=True)


def searched_functions(client, state):
    from prefect.client.schemas.filters import FlowRunFilter

    run = FlowRunFilter(id={"any_": [state.state_details.flow_run_id]})
    names = [task_run.name for task_run in client.read_task_runs(flow_run_filter=run)]
    return sorted(
        found.group(1) for name in names if (found := re.match(r"search (\S+) on ", name))
    )


def times_measured(store):
    """Return how often each cost is in the store."""
    data = [store.read(entry.key).data for entry in store.entries("costs/")]
    return Counter(line.key for text in data for line in cost_lines(text))


def test_each_function_has_a_search_and_one_bundle(server, client, limit, settings, tmp_path):
    speech = tmp_path / "speech"
    speech.mkdir()
    for name, last in (("encoder", "Tanh"), ("decoder", "Abs")):
        write_net(speech / f"{name}.onnx", last)
    shapes = ({"encoder/x": (4, 48), "decoder/x": (4, 48)}, {"decoder/x": (6, 48)})
    state = optimize(f"{speech}/", shapes=shapes)
    assert state.is_completed(), state
    (outcome,) = state.result()
    assert searched_functions(client, state) == list(FUNCTIONS)
    assert set(times_measured(open_store(settings.store)).values()) == {1}, "searches share costs"
    assert outcome.status in ("optimized", "not-faster"), outcome
    if outcome.status == "optimized":  # a busy machine may leave the proof open
        store = open_store(settings.store)
        assert read_alias(store, outcome.alias).bundle == outcome.bundle
        manifest = parse_manifest(read_bundle(store, outcome.bundle), "the bundle")
        assert [signature.function for signature in manifest.functions] == list(FUNCTIONS)
        assert manifest.entries == ("decoder", "encoder")


def test_a_text_model_beside_a_net_has_no_search(server, client, limit, settings, tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    write_net(folder / "net.onnx", "Tanh")
    text_model(folder / "words.onnx")
    state = optimize(f"{folder}/", shapes=({"net/x": (4, 48)},))
    assert state.is_completed(), state
    (outcome,) = state.result()
    assert searched_functions(client, state) == ["net"]
    assert outcome.status in ("optimized", "not-faster"), outcome
    if outcome.status == "optimized":  # a busy machine may leave the proof open
        fetch_bundle(open_store(settings.store), outcome.bundle, tmp_path / "bundle")
        bundle = collage.load(tmp_path / "bundle")
        assert bundle.entries == ("net", "words")
        assert bundle.run({"x": np.array(["ü"])}, "words")["y"].tolist() == ["üü"]


def test_a_flow_on_originals_alone_searches_nothing(server, client, limit, settings, tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    text_model(folder / "words.onnx")
    sequence_model(folder / "rows.onnx")
    state = optimize(f"{folder}/")
    assert state.is_completed(), state
    (outcome,) = state.result()
    assert searched_functions(client, state) == []
    assert outcome.status == "optimized", outcome
    manifest = parse_manifest(read_bundle(open_store(settings.store), outcome.bundle), "the bundle")
    assert manifest.entries == ("rows", "words")


def test_without_the_fallback_a_text_model_is_rejected(server, client, limit, settings, tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    write_net(folder / "net.onnx", "Tanh")
    text_model(folder / "words.onnx")
    state = optimize(f"{folder}/", shapes=({"net/x": (4, 48)},), fallback=False)
    assert (state.name, state.is_failed()) == ("Rejected", True), state
    assert "the entry 'words': 'x' is a tensor(string)" in state.message
    assert searched_functions(client, state) == []
