"""Benchmarks of targets with errors, times, failures and outputs of a test."""

import math

import numpy as np
from onnx import helper

from collage.errors import MeasureError
from collage.verify.accuracy_checker import AccuracyBudget, AccuracyChecker
from collage.verify.gate import Gate
from collage.verify.interleaved_benchmark import Latency
from tests.frontend.build import imported, model


class BenchmarkWithErrors:
    """A benchmark of targets with known errors; outputs are the reference's, times a factor."""

    def __init__(self, errors):
        self._errors = errors

    def check(self, name, samples):
        if name not in self._errors:
            raise MeasureError(f"{name} cannot be checked: the process ended with code -11")
        return self._errors[name]

    def outputs(self, name, names):
        return [np.float32([1.0, 2.0]) * np.float32(1.005 if name == "sloppy" else 1.0)]


def checker(tmp_path, errors):
    node = helper.make_node("Relu", ["x"], ["y"])
    function = imported(model([node], {"x": ("float32", (2,))}, ["y"]), tmp_path)
    expected = {"y": np.float32([1.0, 2.0])}
    return AccuracyChecker(
        BenchmarkWithErrors(errors), function, expected, AccuracyBudget(0.01, tmp_path), {}
    )


def latency(seconds):
    rounds = tuple(seconds * factor for factor in (0.999, 1.0, 1.001, 1.0, 0.998, 1.002, 1.0))
    return Latency(seconds, min(rounds), max(rounds), rounds)


class BusyBenchmark:
    """A benchmark in which one plan looks slow in its first comparison round."""

    def __init__(self, seconds, unlucky):
        self._seconds = seconds
        self._unlucky = {unlucky}
        self.names = []

    def __call__(self, inputs, threads, work_dir):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def enter(self, targets):
        self.names += [target.name for target in targets]
        return {}

    def leave(self, name):
        self.names.remove(name)

    def outputs(self, name, names):
        return [np.float32([1.0, 2.0])]

    def profile(self, name):
        raise MeasureError("nothing runs here")

    def eliminate_slow(self, names, seconds_each, on_round=None):
        latencies = {name: latency(self._seconds[name] * self._burden(name)) for name in names}
        self._unlucky -= set(names)
        return latencies

    def compare(self, names, seconds_each, on_round=None):
        return {name: latency(self._seconds[name]) for name in names}

    def _burden(self, name):
        return 100.0 if name in self._unlucky else 1.0


class FailingBenchmark(BusyBenchmark):
    """A benchmark with failing targets: some in comparison rounds, some in the final round."""

    def __init__(self, seconds, in_rounds=(), in_final_round=()):
        super().__init__(seconds, "")
        self._in_rounds, self._in_final_round = in_rounds, in_final_round

    def eliminate_slow(self, names, seconds_each, on_round=None):
        return self._without(super().eliminate_slow(names, seconds_each), self._in_rounds)

    def compare(self, names, seconds_each, on_round=None):
        return self._without(super().compare(names, seconds_each), self._in_final_round)

    def _without(self, latencies, dying):
        for name in set(dying) & set(latencies):
            self.leave(name)
            latencies[name] = Latency(math.nan, reason=f"{name} died while it ran")
        return latencies


RELU = {"y": np.float32([1.0, 2.0])}


class BenchmarkWithOutputs(FailingBenchmark):
    """A benchmark in which each target has outputs of its own, one array per call."""

    def __init__(self, seconds, outputs):
        super().__init__(seconds)
        self._outputs = {name: iter(values) for name, values in outputs.items()}

    def outputs(self, name, names):
        return [np.float32(next(self._outputs[name]) if name in self._outputs else RELU["y"])]


def make_gate(tmp_path):
    return Gate(model=tmp_path / "model.onnx", threads=1, seconds_each=0.1, work_dir=tmp_path)
