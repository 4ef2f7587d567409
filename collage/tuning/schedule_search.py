"""Schedule search for one function: MetaSchedule's design space and evolutionary search.

Populations are small: generating a schedule takes some 10 ms, as long as running it, and with some dozens
of trials a large population learns no more. One seed determines all schedules.
"""

import json
import logging
from collections.abc import Sequence

import tvm
from tvm import tirx
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule import _ffi_api
from tvm.s_tir.meta_schedule import schedule_rule as rules

from collage.backends.common.tvm.lower import FUSED_SYMBOL
from collage.backends.common.tvm.trace_check import LONGEST_VECTOR, MOST_UNROLLED
from collage.backends.common.tvm.tuned_schedules import replay, unscheduled
from collage.backends.nvidia.tvm_cuda.schedule import target_of
from collage.runtime.target import Target
from collage.tuning.cost_model import KernelRidge

log = logging.getLogger(__name__)

TRIAL_BATCH = 8
"""Schedules of one generation; the cost model is fitted between generations."""
UNLIMITED = 1 << 30
MAX_EMPTY_DRAWS = 2
MAX_POPULATIONS = 20
"""Largest number of populations until enough schedules fit the device; few tilings fill a warp."""
UNROLLED = (0, 16, MOST_UNROLLED)
WITHOUT_ASYNC = "sm_75"
"""Target of the search on every GPU. For later targets TVM adds pipelines of asynchronous copies, and its
default passes generate the waits without the copies. Schedules are compiled for the real GPU."""


class _Context(ms.TuneContext):
    """A context without TVM's import of all CPU and GPU intrinsics (ten seconds)."""

    def __init__(
        self,
        module: tvm.IRModule,
        target: tvm.target.Target,
        space: ms.SpaceGenerator,
        strategy: ms.SearchStrategy,
        *,
        seed: int,
    ) -> None:
        self.__init_handle_by_constructor__(
            _ffi_api.TuneContext, module, target, space, strategy, FUSED_SYMBOL, 1, seed, _silent
        )
        _ffi_api.TuneContextInitialize(self)


def _silent(level: int, file: str, line: int, message: str) -> None:
    pass


class TraceSearch:
    """Generates schedules of one function, guided by the latencies of earlier ones."""

    def __init__(
        self,
        function: tirx.PrimFunc,
        target: tvm.target.Target,
        *,
        threads: int,
        seed: int,
        measured: Sequence[tuple[str, float]],
    ) -> None:
        """Open the design space.

        Args:
            function: function without a schedule.
            target: compilation target.
            threads: number of threads of the kernel.
            seed: random seed, at least 1.
            measured: traces and latencies in seconds of earlier searches; misfits are skipped.
        """
        kind = str(target.kind.name)
        device = Target.CUDA if kind == Target.CUDA else Target.CPU
        self._module = unscheduled(function, device)
        self._target = target_of(WITHOUT_ASYNC) if device.is_gpu else target
        strategy = ms.search_strategy.EvolutionarySearch(
            population_size=32,
            init_min_unmeasured=16,
            max_fail_count=MAX_POPULATIONS,
            genetic_num_iters=1,
            eps_greedy=0.2,
        )
        space = ms.space_generator.PostOrderApply(
            sch_rules=_gpu_rules() if device.is_gpu else _rules(threads),
            postprocs=ms.postproc.Postproc.create(kind),
            mutator_probs=ms.mutator.Mutator.create(kind),
        )
        self._context = _Context(self._module, self._target, space, strategy, seed=seed)
        self._database = ms.database.MemoryDatabase()
        self._workload = self._database.commit_workload(self._module)
        self._model = KernelRidge(seed)
        self._arguments = ms.arg_info.ArgInfo.from_entry_func(self._module, remove_preproc=False)
        self._remember(measured)
        spaces = self._context.generate_design_space()
        self._context.pre_tuning(UNLIMITED, TRIAL_BATCH, spaces, self._database, self._model)
        self._empty = 0

    def draw(self) -> list[ms.MeasureCandidate]:
        """Return schedules to try; an empty list at the end of the space."""
        while self._empty < MAX_EMPTY_DRAWS:
            drawn = self._context.generate_measure_candidates()
            if drawn:
                self._empty = 0
                return list(drawn)
            if drawn is None:
                return []
            self._empty += 1
        return []

    def tell(self, tried: Sequence[ms.MeasureCandidate], seconds: Sequence[float]) -> None:
        """Fit the cost model to the latencies of tried schedules; +inf is a failure."""
        results = [_result(latency_s) for latency_s in seconds]
        for candidate, latency_s in zip(tried, seconds, strict=True):
            self._keep(candidate, latency_s)
        self._context.notify_runner_results(list(tried), results)
        self._model.update(self._context, list(tried), results)

    def _keep(self, candidate: ms.MeasureCandidate, latency_s: float) -> None:
        failed = latency_s == float("inf")
        seconds = [1e10 if failed else latency_s]
        self._database.commit_tuning_record(
            ms.database.TuningRecord(
                candidate.sch.trace, self._workload, seconds, self._target, self._arguments
            )
        )

    def _remember(self, measured: Sequence[tuple[str, float]]) -> None:
        candidates, seconds = [], []
        for trace, latency_s in measured:
            try:
                plan = replay(trace, self._module)
            except Exception as error:  # noqa: BLE001 - TVM's errors share no base class
                # A trace of another version of the rules, or of another program.
                log.debug("a trace is no start of the search: %s: %s", type(error).__name__, error)
                continue
            candidates.append(ms.MeasureCandidate(plan, self._arguments))
            seconds.append(latency_s)
        for candidate, latency_s in zip(candidates, seconds, strict=True):
            self._keep(candidate, latency_s)
        if candidates:
            self._model.update(self._context, candidates, [_result(latency) for latency in seconds])


def _result(latency_s: float) -> ms.runner.RunnerResult:
    if latency_s == float("inf"):
        return ms.runner.RunnerResult(None, "failed")
    return ms.runner.RunnerResult([latency_s], None)


def trace_text(candidate: ms.MeasureCandidate) -> str:
    """Return the candidate's trace, with its decisions, as JSON."""
    return json.dumps(candidate.sch.trace.as_json(), separators=(",", ":"), default=_number)


def _number(value: tirx.IntImm | tirx.FloatImm) -> int | float:
    number: int | float = value.value
    return number


def _rules(threads: int) -> list[rules.ScheduleRule]:
    """Return TVM's rules for a CPU; with one thread, loops stay serial."""
    return [
        rules.InlineConstantScalars(),
        rules.AutoInline(
            into_producer=False,
            into_consumer=True,
            inline_const_tensor=True,
            disallow_if_then_else=True,
            require_injective=True,
            require_ordered=True,
            disallow_op=["tirx.exp"],
        ),
        rules.AddRFactor(max_jobs_per_core=16, max_innermost_factor=64),
        rules.MultiLevelTiling(
            structure="SSRSRS",
            tile_binds=None,
            max_innermost_factor=64,
            vector_load_lens=None,
            reuse_read=None,
            reuse_write=rules.ReuseType(req="may", levels=[1, 2], scope="global"),
        ),
        rules.ParallelizeVectorizeUnroll(
            max_jobs_per_core=16 if threads > 1 else -1,
            max_vectorize_extent=LONGEST_VECTOR,
            unroll_max_steps=list(UNROLLED),
            unroll_explicit=True,
        ),
        rules.RandomComputeLocation(),
    ]


def _gpu_rules() -> list[rules.ScheduleRule]:
    """Return TVM's rules for a GPU, without tensor cores: vendor libraries use those."""
    return [
        rules.MultiLevelTiling(
            structure="SSSRRSRS",
            tile_binds=["blockIdx.x", "vthread.x", "threadIdx.x"],
            max_innermost_factor=64,
            vector_load_lens=[1, 2, 4],
            reuse_read=rules.ReuseType(req="must", levels=[4], scope="shared"),
            reuse_write=rules.ReuseType(req="must", levels=[3], scope="local"),
        ),
        rules.InlineConstantScalars(),
        rules.AutoInline(
            into_producer=True,
            into_consumer=True,
            inline_const_tensor=True,
            disallow_if_then_else=False,
            require_injective=False,
            require_ordered=False,
            disallow_op=None,
        ),
        rules.CrossThreadReduction(thread_extents=[4, 8, 16, 32, 64, 128, 256, 512]),
        rules.ParallelizeVectorizeUnroll(
            max_jobs_per_core=-1,
            max_vectorize_extent=-1,
            unroll_max_steps=list(UNROLLED),
            unroll_explicit=True,
        ),
        rules.AutoBind(max_threadblocks=256, thread_extents=[32, 64, 128, 256, 512, 1024]),
    ]
