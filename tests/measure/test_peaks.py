"""Peaks: measured, kept, never lowered; bounds follow from them."""

import json

import pytest

from collage.measure import peaks as module
from collage.measure.environment import this_environment
from collage.measure.peaks import Peaks, machine_peaks, measure_one_thread


def test_measured_rates_are_plausible_and_ordered(monkeypatch):
    monkeypatch.setattr(module, "SECONDS_EACH", 0.01)
    monkeypatch.setattr(module, "MEMORY_COPY_BYTES", 1 << 24)
    peaks = measure_one_thread()
    assert 1e8 < peaks.flops_per_s < 1e14
    assert 1e8 < peaks.memory_bytes_per_s <= peaks.bytes_per_s < 1e13


@pytest.mark.parametrize(
    ("moved", "flops", "bound_s", "limit"),
    [(100, 0, 10.0, "bytes"), (10, 1000, 10.0, "flops"), (0, 0, 0.0, "bytes")],
)
def test_the_slower_of_both_limits_bounds(moved, flops, bound_s, limit):
    peaks = Peaks(100.0, 10.0, 5.0)
    assert (peaks.bound_s(moved, flops), peaks.limit(moved, flops)) == (bound_s, limit)


def test_the_store_keeps_the_highest_rates(tmp_path, monkeypatch):
    runs = iter([Peaks(2.0, 1.0, 1.0), Peaks(1.0, 3.0, 1.0), Peaks(1.0, 1.0, 1.0)])
    monkeypatch.setattr(module, "_measure_apart", lambda _: next(runs))
    environment = this_environment(1)
    machine_peaks(environment, tmp_path)
    assert machine_peaks(environment, tmp_path) == Peaks(2.0, 3.0, 1.0)
    [file] = (tmp_path / "peaks").iterdir()
    assert json.loads(file.read_text())["bytes_per_s"] == 3.0
    file.write_text("{")
    assert machine_peaks(environment, tmp_path) == Peaks(1.0, 1.0, 1.0)
