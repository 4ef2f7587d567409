"""A site: requests in a store, a search here, the finish elsewhere, and nothing measured twice."""

import json

import numpy as np
import onnx
import pytest

from collage.errors import ModelError, OptionError, SearchError, StoreError
from collage.pipeline.compile_service import LocalSite
from collage.pipeline.request import RequestOptions, fetch_model, read_request, submit
from collage.report.progress import SilentProgress
from collage.store import open_store
from collage.store.alias_counters import Verification
from collage.store.aliases import AliasSigning
from collage.store.bundles import fetch_bundle
from tests.pipeline.test_compile import small_model
from tests.support.keys import make_key

QUIET = SilentProgress()
OPTIONS = RequestOptions(measure_budget_s=20, refine_s=0, verify_s=0.3)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return open_store(str(tmp_path_factory.mktemp("shared")))


@pytest.fixture(scope="module")
def request_(tmp_path_factory, store):
    model = small_model(tmp_path_factory.mktemp("model") / "small.onnx")
    return submit(store, model, options=OPTIONS)


def test_what_is_searched_here_is_finished_elsewhere_without_measuring(
    request_, store, tmp_path_factory
):
    here = LocalSite(store.url, tmp_path_factory.mktemp("here"))
    facts = here.describe(request_)
    assert "onnxruntime" in facts.backends
    assert here.functions(request_) == ("main",)
    found = here.search(request_, "main", QUIET)
    assert found.measured > 10
    assert found.plans[0].predicted_s > 0
    again = here.search(request_, "main", QUIET)
    assert (again.measured, again.gap_s) == (0, found.gap_s)

    key = make_key(tmp_path_factory.mktemp("key"))
    signing = AliasSigning.by(key.signer)
    elsewhere = LocalSite(store.url, tmp_path_factory.mktemp("elsewhere"), signing)
    result = elsewhere.finish(request_, QUIET)
    assert result.measured == 0
    assert result.functions[0].latency_s["collage"] > 0
    bundle = tmp_path_factory.mktemp("bundles") / "fetched"
    checks = Verification(signing.keys, bundle.parent / "seen")
    assert fetch_bundle(store, result.bundle, bundle, verification=checks) == result.bundle
    assert json.loads((bundle / "summary.json").read_text())["candidates"]["measured"] == 0


def test_a_model_that_draws_random_numbers_has_no_plan_and_a_bundle(store, tmp_path):
    model = small_model(tmp_path / "small.onnx")
    proto = onnx.load(model)
    noise = onnx.helper.make_node("RandomNormalLike", ["m"], ["noise"])
    added = onnx.helper.make_node("Add", ["m", "noise"], ["n"])
    proto.graph.node.extend([noise, added])
    proto.graph.output[1].name = "n"
    onnx.save(proto, model)
    options = RequestOptions(
        backends=("onnxruntime",), measure_budget_s=1, refine_s=0, verify_s=0.1
    )
    request = submit(store, model, options=options)
    site = LocalSite(store.url, tmp_path / "here")
    assert site.search(request, "main", QUIET).plans == ()
    result = site.finish(request, QUIET)
    (function,) = result.functions
    assert function.verdict == "not slower"
    assert result.plan == ("12 nodes on onnxruntime",)
    strict = options.model_copy(update={"fallback": False})
    with pytest.raises(SearchError, match="RandomNormalLike"):
        site.search(submit(store, model, options=strict), "main", QUIET)


def test_an_unknown_function_is_refused(request_, store, tmp_path):
    with pytest.raises(OptionError, match="only main"):
        LocalSite(store.url, tmp_path).search(request_, "other", QUIET)


def test_a_request_is_the_same_wherever_it_is_made(request_, store, tmp_path):
    other = small_model(tmp_path / "small.onnx")
    assert submit(store, other, options=OPTIONS).digest == request_.digest
    assert submit(store, other, options=OPTIONS, threads=2).digest != request_.digest
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
    assert list(request.external) == ["weights.bin"]
    proto, fetched = onnx.load(model), onnx.load(fetch_model(store, request, tmp_path / "fetched"))
    for one, two in zip(proto.graph.initializer, fetched.graph.initializer, strict=True):
        np.testing.assert_array_equal(
            onnx.numpy_helper.to_array(one), onnx.numpy_helper.to_array(two)
        )


def test_a_request_cannot_write_outside_of_its_folder(request_, store, tmp_path):
    for name in ("../evil", "/evil", "model.onnx"):
        evil = request_.model_copy(update={"external": {name: request_.model}})
        with pytest.raises(StoreError, match="outside"):
            fetch_model(store, evil, tmp_path / "folder")


def test_what_is_no_model_is_not_submitted(store, tmp_path):
    (tmp_path / "no.onnx").write_bytes(b"no model")
    with pytest.raises(ModelError):
        submit(store, tmp_path / "no.onnx")
