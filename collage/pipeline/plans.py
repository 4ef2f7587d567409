"""Complete plans with their executables."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from collage.assemble import FunctionPlan, PlannedKernel, assemble
from collage.backends.base import Kernel
from collage.frontend.region import region_values
from collage.measure.measurement_request import MeasurementRequest, compile_request
from collage.pipeline.compile_context import CompileContext
from collage.rules.rule import HOST
from collage.search.function_search import FunctionSearch
from collage.search.plan_selection import NamedPlan
from collage.search.problem import Option, Plan
from collage.verify.plan_executable import PlanExecutable


def kernel_seconds_by_position(
    plan: FunctionPlan, seconds: Mapping[str, float]
) -> dict[int, float]:
    """Map seconds of kernels from symbols to positions in the plan; views have none."""
    return {
        position: seconds[symbol]
        for position, symbol in enumerate(plan.symbols)
        if symbol in seconds
    }


@dataclass
class WholePlans:
    """Plans of one function with their executables; each kernel is compiled once."""

    search: FunctionSearch
    context: CompileContext
    named: dict[str, NamedPlan] = field(default_factory=dict)
    kernels: dict[str, FunctionPlan] = field(default_factory=dict)
    _compiled: dict[MeasurementRequest, Kernel] = field(default_factory=dict)

    def assemble(self, plan: NamedPlan) -> PlanExecutable:
        """Write the executable of one plan."""
        function = self.search.enumerated.function
        file = self.context.work_dir / f"{function.name}-{plan.name}.so"
        self.named[plan.name] = plan
        self.kernels[plan.name] = self._kernels(plan.plan)
        device, graphs = self.context.options.target, self.context.options.cuda_graphs
        assemble([self.kernels[plan.name]], self.context.threads, file, device, graphs=graphs)
        return PlanExecutable(
            plan.name,
            file,
            plan.plan.predicted_s,
            plan.single,
            reduced=plan.plan.reduced,
            device=device,
        )

    def by_position(self, name: str, seconds: Mapping[str, float]) -> dict[int, float]:
        """Map seconds of kernels from symbols to positions in the plan; views have none."""
        return kernel_seconds_by_position(self.kernels[name], seconds)

    def fresh(self) -> list[NamedPlan]:
        """Return the search's plans without an executable so far."""
        assembled = {plan.plan.options for plan in self.named.values()}
        return [
            replace(plan, name=plan.name if plan.name not in self.named else f"{plan.name}-now")
            for plan in self.search.plans
            if plan.plan.options not in assembled
        ]

    def _kernels(self, plan: Plan) -> FunctionPlan:
        function = self.search.enumerated.function
        planned = []
        for option in plan.options:
            inputs, outputs = region_values(function, option.nodes)
            kernel = None if option.backend == HOST else self._kernel(option)
            planned.append(
                PlannedKernel(option.nodes, option.backend, kernel, inputs, outputs=outputs)
            )
        return FunctionPlan(function, tuple(planned))

    def _kernel(self, option: Option) -> Kernel:
        enumerated = self.search.enumerated
        request = replace(enumerated.work[option.key], nodes=option.nodes)
        if request not in self._compiled:
            backend = next(b for b in self.context.backends if b.name == option.backend)
            self._compiled[request] = compile_request(
                backend, enumerated.function, request, self.context.build
            )
        return self._compiled[request]
