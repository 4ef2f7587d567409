"""The server's metrics as Prometheus text; a dozen lines of format need no client library."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Requests by status, their seconds, and what the server is doing; used by one event loop."""

    def __init__(self, model: str, version: str) -> None:
        self._labels = f'model="{_escaped(model)}",version="{_escaped(version)}"'
        self._requests: Counter[int] = Counter()
        self._buckets = [0] * (len(BOUNDS_S) + 1)
        self._sum_s = 0.0

    def count(self, status: int, seconds: float) -> None:
        """Count an inference request that was answered with `status` after `seconds`."""
        self._requests[status] += 1
        self._buckets[bisect_left(BOUNDS_S, seconds)] += 1
        self._sum_s += seconds

    def text(self, gauges: Mapping[str, int]) -> str:
        """Return the page; `gauges` are what the server is doing now."""
        name = "collage_serve_request_seconds"
        lines = ["# TYPE collage_serve_requests_total counter"]
        lines += [
            f'collage_serve_requests_total{{{self._labels},code="{code}"}} {count}'
            for code, count in sorted(self._requests.items())
        ]
        lines.append(f"# TYPE {name} histogram")
        total = 0
        for bound, count in zip([*map(str, BOUNDS_S), "+Inf"], self._buckets, strict=True):
            total += count
            lines.append(f'{name}_bucket{{{self._labels},le="{bound}"}} {total}')
        lines.append(f"{name}_sum{{{self._labels}}} {self._sum_s:.6f}")
        lines.append(f"{name}_count{{{self._labels}}} {total}")
        for gauge, value in gauges.items():
            lines.append(f"# TYPE collage_serve_{gauge} gauge")
            lines.append(f"collage_serve_{gauge}{{{self._labels}}} {value}")
        return "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
