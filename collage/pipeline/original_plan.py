"""The original file as a plan: one kernel runs the complete model in a framework.

The plug-in opens the unchanged file with the options of the framework's baseline: all optimisations, the same
number of threads, spinning threads if the framework's spin. Collage's import does not change the file, so
its numbers need no comparison. Otherwise it is a plan like any other: one option covers every node, one
function of the executable calls it, and its cost is known after the measurement.
"""

import hashlib
from collections.abc import Hashable
from dataclasses import dataclass, field, replace

import numpy as np

from collage.assemble import FunctionPlan, PlannedKernel, assemble
from collage.backends.base import PluginKernel
from collage.backends.telemetry import import_openvino
from collage.cost import Cost
from collage.errors import BackendError, ModelError
from collage.frontend import Function, Model
from collage.frontend.original_file import original_bytes
from collage.graph.dynamic_shape_groups import returns_dynamic_shape
from collage.pipeline.compile_context import CompileContext
from collage.rules.rule import HOST
from collage.runtime.blob import Json, pack
from collage.search.enumeration import EnumeratedFunction
from collage.search.function_search import VIEW_S, FunctionSearch
from collage.search.lazy import LazyResult
from collage.search.plan_selection import NamedPlan
from collage.search.problem import Option, Plan
from collage.verify.baselines import ON_CPU
from collage.verify.decision import Decision, OriginalPlans
from collage.verify.plan_executable import PlanExecutable

BACKENDS = {"onnxruntime": "onnxruntime", "openvino": "openvino", ON_CPU: "openvino"}
"""Baselines that the plug-in can run, with the backend that must be allowed."""
PRECISIONS = {ON_CPU: "bf16"}
"""Precision of a baseline, if lower than in the file."""


@dataclass
class OriginalFile:
    """Builder of the original-file plans of one function, with the assembled plans by name."""

    model: Model
    function: Function
    context: CompileContext
    named: dict[str, NamedPlan] = field(default_factory=dict)
    kernels: dict[str, FunctionPlan] = field(default_factory=dict)

    @property
    def plans(self) -> OriginalPlans:
        """Return the plans for the gate; without baselines where the file cannot or must not ship."""
        options = self.context.options
        if not (
            options.fallback and options.target.runs_original_file and self.function.graph.nodes
        ):
            return OriginalPlans()
        allowed = {backend.name for backend in self.context.compatible_backends}
        allocates = returns_dynamic_shape(self.function.graph, self.function.graph.everything)
        baselines = frozenset(
            baseline
            for baseline, backend in BACKENDS.items()
            if backend in allowed
            and (
                backend == "onnxruntime"
                or not (
                    allocates
                    or options.keep_nan
                    or self._outputs != tuple(self.function.graph.outputs)
                )
            )
        )
        return OriginalPlans(baselines if self._outputs else frozenset(), self.assemble)

    @property
    def _outputs(self) -> tuple[str, ...]:
        """Names of the outputs that nodes compute, each once.

        Frameworks do not write an input or a constant into the memory of an output; the executable returns
        these itself.
        """
        graph = self.function.graph
        computed = {value for node in graph.nodes for value in node.outputs}
        return tuple(dict.fromkeys(value for value in graph.outputs if value in computed))

    def assemble(self, baseline: str) -> PlanExecutable:
        """Write the executable of the file with the framework of `baseline`.

        Raises:
            BackendError: the file or the framework does not allow this.
        """
        graph = self.function.graph
        backend = next(b for b in self.context.backends if b.name == BACKENDS[baseline])
        key: Hashable = ("original", baseline, backend.identity)
        precision = PRECISIONS.get(baseline, "")
        option = Option(graph.everything, key, backend.name, precision=precision)
        name = f"original-{baseline}"
        kernel = self._kernel(baseline)
        symbol = f"collage_original_{hashlib.sha256(kernel.blob).hexdigest()[:16]}"
        planned = PlannedKernel(
            graph.everything,
            backend.name,
            kernel,
            graph.inputs,
            outputs=self._outputs,
            shared=symbol,
        )
        self.named[name] = NamedPlan(name, Plan((option,), 0.0), backend.name)
        self.kernels[name] = FunctionPlan(self.function, (planned,))
        direct = symbol if self._outputs == tuple(graph.outputs) else ""
        file = self.context.work_dir / f"{self.function.name}-{name}.so"
        assemble([self.kernels[name]], self.context.threads, file)
        return PlanExecutable(
            name, file, 0.0, backend.name, reduced=bool(precision), original=baseline, kernel=direct
        )

    def _kernel(self, baseline: str) -> PluginKernel:
        try:
            content = original_bytes(self.model.path)
        except ModelError as error:
            raise BackendError(str(error)) from error
        header: dict[str, Json] = {"threads": self.context.threads, "alone": 1}
        graph, allocates = self.function.graph, False
        if BACKENDS[baseline] == "onnxruntime":
            allocates = returns_dynamic_shape(graph, graph.everything)
            header |= {"input_names": list(graph.inputs), "output_names": list(self._outputs)}
            header |= {"allocates": 1} if allocates else {}
        else:
            header |= _openvino_inputs(content, self.function)
            header["inference_precision"] = PRECISIONS.get(baseline, "f32")
        blob = pack(header, [np.frombuffer(content, np.uint8)])
        library = BACKENDS[baseline]
        return PluginKernel(library, blob, allocates, libraries=frozenset({library}))


def with_original(
    search: FunctionSearch, named: NamedPlan, decision: Decision
) -> tuple[FunctionSearch, NamedPlan]:
    """Add the chosen original-file plan and its measured cost to the search."""
    (option,) = named.plan.options
    latency = decision.latency
    error = max(decision.errors.get(named.name, {}).values(), default=0.0)
    cost = Cost(latency.seconds, latency.low, latency.high, error=error if option.reduced else 0.0)
    problem = search.enumerated.problem
    problem = replace(problem, options=[*problem.options, option])
    named = replace(named, plan=Plan((option,), latency.seconds))
    costs = {**search.costs, option.key: cost}
    lazy = replace(search.lazy, costs={**search.lazy.costs, option.key: cost})
    enumerated = replace(search.enumerated, problem=problem)
    extended = replace(
        search, enumerated=enumerated, costs=costs, plans=(*search.plans, named), lazy=lazy
    )
    return extended, named


def without_plans(enumerated: EnumeratedFunction) -> FunctionSearch:
    """Return a search without plans: no plan of regions computes the right numbers."""
    costs: dict[Hashable, Cost] = {HOST: Cost(VIEW_S, VIEW_S, VIEW_S)}
    nothing = LazyResult(
        plan=Plan((), 0.0),
        costs=costs,
        rounds=(),
        measured=0,
        unmeasured=len(enumerated.work),
        gap_s=0.0,
    )
    return FunctionSearch(enumerated, costs, (), nothing)


def _openvino_inputs(content: bytes, function: Function) -> dict[str, Json]:
    """Return shapes and positions of the model's inputs in OpenVINO's own order."""
    try:
        model = import_openvino().Core().read_model(content)
    except RuntimeError as error:
        raise BackendError(f"OpenVINO does not read the original file: {error}") from error
    places = {
        name: place
        for place, model_input in enumerate(model.inputs)
        for name in model_input.get_names()
    }
    missing = sorted(set(function.graph.inputs) - set(places))
    if missing or len(model.inputs) != len(function.graph.inputs):
        raise BackendError(f"OpenVINO reads the original file with other inputs ({missing})")
    inputs = [places[name] for name in function.graph.inputs]
    shapes: list[int] = []
    for place in range(len(inputs)):
        tensor = function.type_of(function.graph.inputs[inputs.index(place)])
        shape = tensor.shape or ()
        shapes += [len(shape), *shape]
    return {"inputs": inputs, "shapes": shapes}
