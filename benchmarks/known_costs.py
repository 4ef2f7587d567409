"""A model's search problem with the costs of a store, for benchmarks of hypothetical plans."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.model_set import BenchmarkModel
from collage.cost import Cost
from collage.measure.local import LocalMeasurer
from collage.option_text import parse_shapes
from collage.options import Options
from collage.pipeline.compile_context import open_compile_context
from collage.pipeline.search_stage import enumerated_function, imported, local_measurer, sampled
from collage.rules.rule import HOST
from collage.search.enumeration import EnumeratedFunction
from collage.search.function_search import VIEW_S
from collage.search.k_best import find_plans
from collage.search.problem import Option, Plan


@dataclass(frozen=True)
class KnownCosts:
    """The candidates of a model's first function with a measurer and the costs of the store."""

    enumerated: EnumeratedFunction
    measurer: LocalMeasurer
    costs: dict[Hashable, Cost]

    def best(self, keep: Callable[[Option], bool] = lambda option: True) -> Plan:
        """Return the best plan of the known options with `keep`; SearchError without a plan."""
        options = [option for option in self.enumerated.problem.options if keep(option)]
        problem = replace(self.enumerated.problem, options=options)
        return find_plans(problem, self.costs, 1)[0]


@contextmanager
def known_costs(model: BenchmarkModel, store: Path, threads: int) -> Iterator[KnownCosts]:
    """Open the problem of `model` with the costs in the folder `store`."""
    shapes = parse_shapes(model.arguments[1::2])
    options = Options(threads=threads, cache_dir=store, shapes=shapes)
    with open_compile_context(options) as context:
        loaded = imported(model.path, context)
        function = loaded.functions[0]
        enumerated = enumerated_function(function, context)
        reference = sampled(loaded, function, context).reference_dir
        measurer = local_measurer(function, reference, context)
        try:
            requests = list(enumerated.work.values())
            recalled = zip(enumerated.work, measurer.recall(requests), strict=True)
            costs = {key: cost for key, cost in recalled if not cost.is_unknown}
            yield KnownCosts(enumerated, measurer, costs | {HOST: Cost(VIEW_S, VIEW_S, VIEW_S)})
        finally:
            measurer.close()
