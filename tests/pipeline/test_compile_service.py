"""A compile service: search and bundle on different machines through a store, nothing measured twice."""

import dataclasses
import json

import numpy as np
import onnx
import pytest

import collage
from collage.errors import ModelError, OptionError, StoreError
from collage.options import Options
from collage.pipeline.compile_service import LocalCompileService
from collage.pipeline.request import (
    CompileRequest,
    RequestedModel,
    RequestOptions,
    fetch_models,
    read_request,
    submit,
)
from collage.report.progress import SilentProgress
from collage.store import open_store
from collage.store.alias_counters import Verification
from collage.store.aliases import AliasSigning
from collage.store.bundles import fetch_bundle
from tests.support.entry_models import write_net
from tests.support.keys import make_key
from tests.support.models import small_model
from tests.support.original_models import text_model

QUIET = SilentProgress()
OPTIONS = RequestOptions(measure_budget_s=20, refine_s=0, verify_s=0.3)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return open_store(str(tmp_path_factory.mktemp("shared")))


@pytest.fixture(scope="module")
def request_(tmp_path_factory, store):
    model = small_model(tmp_path_factory.mktemp("model") / "small.onnx")
    return submit(store, model, options=OPTIONS)


@pytest.mark.full
def test_a_bundle_of_another_machine_measures_nothing_again(request_, store, tmp_path_factory):
    first = LocalCompileService(store.url, tmp_path_factory.mktemp("here"))
    facts = first.probe(request_)
    assert "onnxruntime" in facts.backends
    assert first.functions(request_) == ("main",)
    search = first.search(request_, "main", QUIET)
    assert search.measured > 10
    assert search.plans[0].predicted_s > 0
    again = first.search(request_, "main", QUIET)
    assert (again.measured, again.gap_s) == (0, search.gap_s)

    key = make_key(tmp_path_factory.mktemp("key"))
    signing = AliasSigning.by(key.signer)
    second = LocalCompileService(store.url, tmp_path_factory.mktemp("elsewhere"), signing)
    result = second.finish(request_, QUIET)
    assert result.measured == 0
    assert result.functions[0].latency_s["collage"] > 0
    bundle = tmp_path_factory.mktemp("bundles") / "fetched"
    checks = Verification(signing.keys, bundle.parent / "seen")
    assert fetch_bundle(store, result.bundle, bundle, verification=checks) == result.bundle
    assert json.loads((bundle / "summary.json").read_text())["candidates"]["measured"] == 0


def test_an_entry_that_runs_as_the_original_has_no_search(store, tmp_path):
    write_net(tmp_path / "net.onnx", "Tanh")
    text_model(tmp_path / "words.onnx")
    files = {name: tmp_path / f"{name}.onnx" for name in ("words", "net")}
    shapes = ({"net/x": (4, 48)}, {"net/x": (6, 48)})
    request = submit(store, files, options=RequestOptions(shapes=shapes))
    service = LocalCompileService(store.url, tmp_path / "here")
    assert service.functions(request) == ("net", "net_1")


@pytest.mark.parametrize(
    ("device", "options", "advice"),
    [
        ("cpu", {"fallback": False}, "without --no-fallback"),
        ("cpu", {"backends": ("onednn",)}, "add onnxruntime to --backends"),
        ("cuda", {}, "compile for the cpu"),
    ],
)
def test_an_original_that_may_not_run_is_refused_at_once(store, tmp_path, device, options, advice):
    path = text_model(tmp_path / "words.onnx")
    request = submit(store, path, device=device, options=RequestOptions(**options))
    service = LocalCompileService(store.url, tmp_path / "here")
    with pytest.raises(ModelError, match=rf"the entry 'main': 'x' is a tensor\(string\).*{advice}"):
        service.functions(request)


@pytest.mark.full
def test_a_model_with_random_numbers_is_searched(store, tmp_path):
    """Two draws differ: they are judged by type, shape and moments, with a fallback or without."""
    model = small_model(tmp_path / "small.onnx")
    proto = onnx.load(model)
    noise = onnx.helper.make_node("RandomNormalLike", ["m"], ["noise"])
    added = onnx.helper.make_node("Add", ["m", "noise"], ["n"])
    proto.graph.node.extend([noise, added])
    proto.graph.output[1].name = "n"
    onnx.save(proto, model)
    options = RequestOptions(
        backends=("onnxruntime",), measure_budget_s=5, refine_s=0, verify_s=0.1
    )
    request = submit(store, model, options=options)
    service = LocalCompileService(store.url, tmp_path / "here")
    assert service.search(request, "main", QUIET).plans
    result = service.finish(request, QUIET)
    fetch_bundle(store, result.bundle, tmp_path / "bundle")
    bundle = collage.load(tmp_path / "bundle")
    feeds = {"x": np.full((1, 3, 24, 24), 0.5, np.float32)}
    first, second = bundle.run(feeds), bundle.run(feeds)
    assert np.isfinite(first["n"]).all()
    assert not np.array_equal(first["n"], second["n"])
    strict = options.model_copy(update={"fallback": False})
    assert service.search(submit(store, model, options=strict), "main", QUIET).plans


def test_an_unknown_function_is_refused(request_, store, tmp_path):
    with pytest.raises(OptionError, match="only main"):
        LocalCompileService(store.url, tmp_path).search(request_, "other", QUIET)


def test_a_request_is_the_same_wherever_it_is_made(request_, store, tmp_path):
    copy = small_model(tmp_path / "small.onnx")
    assert submit(store, copy, options=OPTIONS).digest == request_.digest
    assert submit(store, copy, options=OPTIONS, threads=2).digest != request_.digest
    assert read_request(store, request_.digest) == request_
    with pytest.raises(StoreError, match="submit the model again"):
        read_request(store, "0" * 64)


def test_external_data_travels(store, tmp_path):
    model = small_model(tmp_path / "small.onnx")
    (tmp_path / "large").mkdir()
    large = tmp_path / "large" / "large.onnx"
    onnx.save(
        onnx.load(model),
        large,
        save_as_external_data=True,
        size_threshold=0,
        location="weights.bin",
    )
    request = submit(store, large)
    assert list(request.models[0].external) == ["weights.bin"]
    (entry,) = fetch_models(store, request, tmp_path / "fetched")
    proto, fetched = onnx.load(model), onnx.load(entry.path)
    for tensor, fetched_tensor in zip(
        proto.graph.initializer, fetched.graph.initializer, strict=True
    ):
        np.testing.assert_array_equal(
            onnx.numpy_helper.to_array(tensor), onnx.numpy_helper.to_array(fetched_tensor)
        )


def test_a_request_cannot_write_outside_of_its_folder(request_, store, tmp_path):
    for name in ("../evil", "/evil", "model.onnx"):
        (requested,) = request_.models
        requested = requested.model_copy(update={"external": {name: requested.model}})
        evil = request_.model_copy(update={"models": (requested,)})
        with pytest.raises(StoreError, match="outside"):
            fetch_models(store, evil, tmp_path / "folder")


def test_what_is_no_model_is_not_submitted(store, tmp_path):
    (tmp_path / "no.onnx").write_bytes(b"no model")
    with pytest.raises(ModelError):
        submit(store, tmp_path / "no.onnx")


def test_a_request_has_every_option_but_those_of_the_machine():
    names = {field.name for field in dataclasses.fields(Options)}
    machine = {"allow_slower", "cache_dir", "device", "store", "threads"}
    apart = {"inputs", "samples"}  # a request has the digests of their files
    assert RequestOptions.model_fields.keys() == names - machine - apart


def test_defaults_of_a_request_are_those_of_options():
    assert RequestOptions() == RequestOptions.of(Options(tune_s=0.0))


def test_options_survive_a_request(tmp_path):
    options = Options(
        backends=("onednn",), cuda_graphs=False, end_to_end_plans=2, tune_s=1.5, threads=1,
        dims={"batch": 2}, shapes=({"x": (1, 3)},), cache_dir=tmp_path, store="file:///store",
    )  # fmt: skip
    request = CompileRequest(
        name="m", models=(RequestedModel(model="0" * 64),), options=RequestOptions.of(options)
    )
    assert request.compile_options("file:///store", tmp_path) == options


def test_a_request_refuses_backends_that_are_objects():
    with pytest.raises(OptionError, match="names its backends"):
        RequestOptions.of(Options(backends=(object(),)))
