"""Samples of a request: under a prefix of their own in the store, and kept as long as the request."""

import numpy as np
import pytest

from collage.entries import find_entries, options_of
from collage.errors import StoreError
from collage.frontend.sample_files import NO_SAMPLES, read_samples
from collage.pipeline.compile_service import LocalCompileService
from collage.pipeline.entry_import import read_entry_samples
from collage.pipeline.request import RequestOptions, read_request, submit
from collage.pipeline.request_samples import fetch_samples, sample_key
from collage.report.progress import SilentProgress
from collage.store import open_store
from collage.store.gc import Retention, collect_garbage
from tests.support.models import small_model


def photos(*sides):
    return [
        {"x": np.random.default_rng(side).random((1, 3, side, side), np.float32)} for side in sides
    ]


@pytest.fixture
def store(tmp_path):
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def model(tmp_path):
    return small_model(tmp_path / "small.onnx", dynamic=True)


def test_samples_return_with_their_request(store, model):
    samples = read_samples(photos(24, 16, 24), {"gain": 2})
    request = submit(store, model, samples=samples)
    assert request.options.shapes == ({"x": (1, 3, 24, 24)}, {"x": (1, 3, 16, 16)})
    fetched = fetch_samples(store, read_request(store, request.digest))
    for before, after in zip(samples.sets, fetched.sets, strict=True):
        np.testing.assert_array_equal(before["x"], after["x"])
    assert int(fetched.settings["gain"]) == 2


def test_samples_of_several_entries_name_theirs(store, tmp_path):
    models = {name: tmp_path / f"{name}.onnx" for name in ("decoder", "encoder")}
    for path in models.values():
        small_model(path, dynamic=True)
    (tmp_path / "samples").mkdir()
    np.savez(tmp_path / "samples" / "decoder.npz", photo=photos(24)[0]["x"])
    np.savez(tmp_path / "samples" / "encoder.npz", x=photos(16)[0]["x"])
    samples = read_entry_samples((tmp_path / "samples",), find_entries(models))
    request = submit(store, models, samples=samples)
    assert request.options.shapes == ({"decoder/x": (1, 3, 24, 24), "encoder/x": (1, 3, 16, 16)},)
    fetched = fetch_samples(store, read_request(store, request.digest))
    options = request.compile_options(store.url, tmp_path, fetched)
    own = options_of(options, "encoder", tuple(models))
    assert [arrays["x"].shape for arrays in own.samples] == [(1, 3, 16, 16)]
    assert own.shapes == ({"x": (1, 3, 16, 16)},)


def test_equal_samples_make_equal_requests(store, model):
    first = submit(store, model, samples=read_samples(photos(24), {}))
    assert submit(store, model, samples=read_samples(photos(24), {})) == first
    other = [{"x": photos(24)[0]["x"] + 1}]
    assert submit(store, model, samples=read_samples(other, {})).digest != first.digest
    assert fetch_samples(store, submit(store, model)) == NO_SAMPLES


def test_only_the_prefix_of_samples_has_them(store, model, tmp_path):
    samples = read_samples(photos(24), {"gain": 123456789})
    request = submit(store, model, samples=samples)
    secret = samples.sets[0]["x"].tobytes()[:64]
    for file in (path for path in (tmp_path / "store").rglob("*") if path.is_file()):
        content = file.read_bytes()
        is_sample = file.is_relative_to(tmp_path / "store" / "samples")
        assert (secret in content or np.int64(123456789).tobytes() in content) == is_sample, file
    assert "123456789" not in request.text.decode()


def test_a_changed_sample_is_refused(store, model):
    request = submit(store, model, samples=read_samples(photos(24), {}))
    key = sample_key(request.samples[0])
    store.delete(key)
    with pytest.raises(StoreError, match="submit the model again"):
        fetch_samples(store, request)
    store.create(key, b"other")
    with pytest.raises(StoreError, match="changed or damaged"):
        fetch_samples(store, request)


def test_samples_go_with_their_request(store, model):
    request = submit(store, model, samples=read_samples(photos(24), {"gain": 2}))
    keys = {sample_key(digest) for digest in (*request.samples, request.settings)}
    held = collect_garbage(store, 0.0, dry_run=False)
    assert not keys & {entry.key for entry in held.deleted}
    collect_garbage(store, 0.0, dry_run=False, retention=Retention(requests=0.0))
    collect_garbage(store, 0.0, dry_run=False, retention=Retention(requests=0.0))
    assert [key for key in keys if store.stat(key)] == []
    assert list(store.entries("samples/")) == list(store.entries("trash/samples/")) == []


@pytest.mark.full
def test_a_service_compiles_with_the_samples_of_a_request(store, model, tmp_path):
    options = RequestOptions(
        backends=("onnxruntime",), measure_budget_s=2, refine_s=0, verify_s=0.05, workers=1
    )
    request = submit(store, model, options=options, samples=read_samples(photos(16, 24), {}))
    service = LocalCompileService(store.url, tmp_path / "here")
    assert service.functions(request) == ("main", "main_1")
    search = service.search(request, "main_1", SilentProgress())
    assert search.plans
