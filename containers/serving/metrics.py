"""The server's metrics as Prometheus text; a dozen lines of format need no client library."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from collage.runtime.dispatch import DispatchCounts

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


SHOWN_SHAPES = 20
"""Most frequent shapes that no function has, on the page."""


class Metrics:
    """Requests of each model by status, their seconds, and what the server is doing; for one event loop."""

    def __init__(self, name: str, version: str) -> None:
        """Begin to count.

        Args:
            name: name of the bundle, the label `model` of what the server is doing.
            version: its version.
        """
        self._name, self._version = name, version
        self._models: dict[str, _Requests] = {}

    def count(self, model: str, status: int, seconds: float) -> None:
        """Count an inference request to `model` that was answered with `status` after `seconds`."""
        requests = self._models.setdefault(model, _Requests())
        requests.statuses[status] += 1
        requests.buckets[bisect_left(BOUNDS_S, seconds)] += 1
        requests.sum_s += seconds

    def text(
        self,
        gauges: Mapping[str, int],
        ways: Mapping[str, Sequence[DispatchCounts]] = MappingProxyType({}),
    ) -> str:
        """Return the page.

        Args:
            gauges: present values of the gauges, by name.
            ways: ways of the calls of each model, for each copy; default none.
        """
        name = "collage_serve_request_seconds"
        models = sorted((self._models or {self._name: _Requests()}).items())
        lines = ["# TYPE collage_serve_requests_total counter"]
        lines += [
            f'collage_serve_requests_total{{{self._labels(model)},code="{code}"}} {count}'
            for model, requests in models
            for code, count in sorted(requests.statuses.items())
        ]
        lines.append(f"# TYPE {name} histogram")
        for model, requests in models:
            labels, total = self._labels(model), 0
            for bound, count in zip([*map(str, BOUNDS_S), "+Inf"], requests.buckets, strict=True):
                total += count
                lines.append(f'{name}_bucket{{{labels},le="{bound}"}} {total}')
            lines.append(f"{name}_sum{{{labels}}} {requests.sum_s:.6f}")
            lines.append(f"{name}_count{{{labels}}} {total}")
        for gauge, value in gauges.items():
            lines.append(f"# TYPE collage_serve_{gauge} gauge")
            lines.append(f"collage_serve_{gauge}{{{self._labels(self._name)}}} {value}")
        lines += self._way_lines(ways)
        return "\n".join(lines) + "\n"

    def _way_lines(self, ways: Mapping[str, Sequence[DispatchCounts]]) -> list[str]:
        """Return the calls by way and function, and the most frequent shapes without a function."""
        calls, shapes = [], []
        for model, counts in sorted(ways.items()):
            totals: Counter[tuple[str, str]] = Counter()
            others: Counter[str] = Counter()
            for copy in counts:
                totals.update({("exact", name): n for name, n in copy.functions.items()})
                totals.update({("padded", name): n for name, n in copy.padded.items()})
                totals.update({("fallback", ""): copy.fallback})
                others.update(copy.padded_shapes)
                others.update(copy.fallback_shapes)
            calls += [
                f'collage_serve_calls_total{{{self._labels(model)},way="{way}",'
                f'function="{_escaped(function)}"}} {count}'
                for (way, function), count in sorted(totals.items())
            ]
            shapes += [
                f"collage_serve_other_shapes_total{{{self._labels(model)},"
                f'shapes="{_escaped(shape)}"}} {count}'
                for shape, count in others.most_common(SHOWN_SHAPES)
            ]
        return [
            *(["# TYPE collage_serve_calls_total counter"] if calls else []),
            *calls,
            *(["# TYPE collage_serve_other_shapes_total counter"] if shapes else []),
            *shapes,
        ]

    def _labels(self, model: str) -> str:
        return f'model="{_escaped(model)}",version="{_escaped(self._version)}"'


@dataclass
class _Requests:
    """Answered requests of one model; `buckets` are those of `BOUNDS_S` and one more."""

    statuses: Counter[int] = field(default_factory=Counter)
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    sum_s: float = 0.0


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
