"""What the tests of tuning work on: small functions with reference values, and tuners of them."""

import json
from dataclasses import dataclass
from pathlib import Path

from collage.cost import Environment
from collage.frontend import Function
from collage.frontend.inputs import random_inputs, reference_values, save_reference
from collage.graph.index_set import indices
from collage.measure.environment import this_environment
from collage.measure.measurement_request import MeasurementRequest
from collage.runtime.target import Target
from collage.tuning.records import TuningRecords
from collage.tuning.targets import tunable
from collage.tuning.tuner import TUNING_WORKER, Tuner, TuningLimits
from collage.tuning.tuning_tasks import tunable_regions
from tests.backends.regions import convolutions

ENVIRONMENT = this_environment(1)
"""Of this machine's CPU."""
SWEEP = 1 << 20


def trace(number: int) -> str:
    """A trace like those of searches, told from others by a number."""
    block = ["GetSBlock", [], [f"stage_{number}", "fused"], ["b0"]]
    return json.dumps([[block], []], separators=(",", ":"))


@dataclass(frozen=True)
class Place:
    """A function, its reference values, and the store that its records go to."""

    function: Function
    folder: Path
    store: Path
    device: Target = Target.CPU

    @property
    def environment(self) -> Environment:
        return this_environment(1, self.device) if self.device.is_gpu else ENVIRONMENT

    @property
    def records(self) -> TuningRecords:
        return TuningRecords(self.store, self.environment)

    def tuner(self, records=None, limits=None, child=TUNING_WORKER) -> Tuner:
        return Tuner(
            [self.function],
            records or self.records,
            1,
            reference_dir=self.folder / "reference",
            cache_flush_bytes=SWEEP,
            limits=limits or TuningLimits(),
            child=child,
            device=self.device,
        )

    def work(self, *ops: str) -> MeasurementRequest:
        """The first tunable region with exactly these operators."""
        backend = tunable(self.device)
        for nodes in tunable_regions(self.function, backend):
            if tuple(self.function.graph.nodes[i].op for i in indices(nodes)) == ops:
                return MeasurementRequest(self.function.name, nodes, backend.name)
        raise AssertionError(f"no region {ops}")


def place(
    folder: Path, store: Path, function: Function | None = None, device: Target = Target.CPU
) -> Place:
    """Make the place of a function: two small convolutions unless another one is given."""
    folder.mkdir(exist_ok=True)
    function = function or convolutions(folder)
    save_reference(reference_values(function, random_inputs(function, 0)), folder / "reference")
    return Place(function, folder, store, device)
