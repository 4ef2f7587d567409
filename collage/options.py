"""Options of a compile; every field has a default and a declaration.

The command line (`collage.cli.option_arguments`) and requests (`collage.pipeline.request.RequestOptions`) are
made from the fields of `Options`. An option is added by one field here, and by its documentation.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import Field, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from collage.errors import OptionError
from collage.option_declaration import declaration_of, declare
from collage.option_text import (
    parse_dims,
    parse_duration,
    parse_inputs,
    parse_names,
    parse_pad,
    parse_paths,
    parse_shapes,
    parse_size,
)
from collage.runtime.target import Target

if TYPE_CHECKING:
    from collage.backends.base import Backend


DeviceName = Literal["cpu", "cuda"]
"""Device of kernels; each backend has one."""

DEVICES: tuple[DeviceName, ...] = get_args(DeviceName)


GoldenName = Literal["samples", "generated"]
"""Origin of a bundle's golden data."""

GOLDEN: tuple[GoldenName, ...] = get_args(GoldenName)


class Effort(NamedTuple):
    """Seconds for measuring candidates, for refining plans and for tuning kernels."""

    measure_budget_s: float
    refine_s: float
    tune_s: float


EFFORTS = {
    "quick": Effort(20.0, 0.0, 0.0),
    "normal": Effort(240.0, 40.0, 30.0),
    "thorough": Effort(900.0, 180.0, 600.0),
}

_NORMAL = EFFORTS["normal"]

DEFAULT_TOLERANCE = 1e-2
"""A hundredth of the output's scale; whole models in bfloat16 err by 0.2-0.9 % (benchmarks)."""


class Precision(StrEnum):
    """Precision of kernels.

    `fp32`: the precision of the model. `auto`: reduced precision too, for kernels with a lower measured
    latency in a plan within the tolerance.
    """

    FP32 = "fp32"
    AUTO = "auto"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of one compile.

    The order of the fields is their order in the help of the command line.

    Attributes:
        dims: values of named dynamic dimensions, e.g. `{"batch": 1}`.
        shapes: input shapes, one mapping per shape set; several sets make a dispatcher.
        samples: real inputs: files, folders of them, or arrays by input name
            (`collage.frontend.sample_files`). Candidates are measured and plans judged with these; shapes
            that are not bound are theirs.
        inputs: value of an input by name, for every sample set and for generated inputs: a number, a
            nested list, an array, or the path of a .npy file.
        golden: "samples", or "generated" to keep the samples out of the bundle's golden data; default
            "samples". Without samples, all inputs are generated.
        backends: names, `module:Class`, or `Backend` objects (one of your own, or `with_rule(...)`), in
            order of priority at equal cost; None: all available backends.
        device: device of the kernels, one of `DEVICES`, default "cpu".
        cuda_graphs: whether kernels on a GPU are captured in CUDA graphs if all of them allow it.
        threads: threads of every kernel; None: one per physical core.
        precision: `fp32`, or `auto` to allow bfloat16 and, on a GPU, TF32 if the machine has it.
        tolerance: error budget of `auto`: max |actual - fp32| / max |fp32| of every output, with a scale
            of 1 for probabilities and equality for integers (`collage.runtime.precision`); for the
            gate's inputs and ten more seeds.
        measure_budget_s: limit of the search's measurements, in seconds; waiting for machines is free.
        refine_s: time for plans that may be faster than the best one so far, in seconds.
        tune_s: time for schedules of native kernels that could change the plan, in seconds; 0: only
            schedules from the store. The default of requests is 0: without a request for tuning the machine
            of the final stage measures nothing twice.
        workers: number of worker processes for builds and measurements.
        timeout_s: hard limit of one candidate's build and measurement, in seconds.
        memory_bytes: hard limit of one worker's resident memory, in bytes.
        seed: seed of the generated inputs.
        end_to_end_plans: number of additive-best plans to assemble and measure as a whole.
        verify_s: time of each target in the final round, in seconds; up to ten times as long without a
            proof.
        keep_nan: whether kernels that give a number where the original gives NaN are refused, and the
            original file ships on ONNX Runtime only.
        fallback: whether the original file itself ships if nothing is proven as fast as the frameworks.
        exact_only: whether the bundle lacks the original model, which otherwise answers all shapes that no
            function has, if the model has several.
        pad: axes of inputs that may be padded at their end, so that a call goes to the nearest larger shape
            set, e.g. "ids:1,value=0,crop=logits:1" (`collage.option_text.parse_pad`).
        allow_slower: whether a bundle without this proof is written; its manifest says so, and stores and
            servers refuse it.
        cache_dir: folder of the local store; None: `collage` in the user's cache folder.
        store: address of a store that shares costs between machines; None: no sharing.
    """

    dims: Mapping[str, int] = declare(
        {},
        "--dim",
        "bind a named dimension",
        metavar="NAME=N",
        parse=parse_dims,
        is_repeatable=True,
    )
    shapes: tuple[Mapping[str, tuple[int, ...]], ...] = declare(
        (), "--shape", "bind the shape of an input; separate several inputs by ';'; repeat --shape of the "
        "same input for another shape set",
        metavar="INPUT=1,3,480,480", parse=parse_shapes, is_repeatable=True,
    )  # fmt: skip
    samples: Any = declare(
        (), "--samples", "real inputs: .npz or .npy files, or folders of them; measured, verified and kept "
        "as golden data, and unbound shapes are theirs",
        metavar="PATH", parse=parse_paths, is_repeatable=True, is_of_machine=True,
    )  # fmt: skip
    inputs: Mapping[str, Any] = declare(
        {}, "--input", "value of an input, e.g. sr=16000, sizes=32,24 or x=x.npy",
        metavar="NAME=VALUE|FILE.npy", parse=parse_inputs, is_repeatable=True, is_of_machine=True,
    )  # fmt: skip
    golden: GoldenName = declare(
        "samples", "--golden", "generated: keep the samples out of the bundle's golden data "
        "(default {default})",
        choices=GOLDEN,
    )  # fmt: skip
    backends: "tuple[str | Backend, ...] | None" = declare(
        None, "--backends", "backend names, or module:Class of a backend that is not installed "
        "(default: all available backends)",
        metavar="A,B", parse=parse_names, request_type=tuple[str, ...] | None,
    )  # fmt: skip
    device: DeviceName = declare(
        "cpu", "--device", "target device (default {default})", choices=DEVICES, is_of_machine=True
    )
    cuda_graphs: bool = declare(True, "--no-cuda-graphs", "launch kernels without CUDA graphs")
    threads: int | None = declare(
        None, "--threads", "threads of one call (default: one per physical core)",
        parse=int, is_of_machine=True,
    )  # fmt: skip
    precision: Precision | str = declare(
        Precision.FP32, "--precision",
        "auto: allow bfloat16, on a GPU TF32, within --tolerance (default {default})",
        choices=[str(precision) for precision in Precision], request_type=str,
    )  # fmt: skip
    tolerance: float = declare(
        DEFAULT_TOLERANCE, "--tolerance",
        "with --precision auto: largest error of an output relative to its scale (default {default})",
        metavar="0.01", parse=float,
    )  # fmt: skip
    measure_budget_s: float = declare(
        _NORMAL.measure_budget_s, "--budget",
        "time for measuring candidates (default: set by --effort)",
        metavar="120s|2m", parse=parse_duration,
    )  # fmt: skip
    refine_s: float = declare(
        _NORMAL.refine_s, "--refine", "time for refining whole plans (default: set by --effort)",
        metavar="40s", parse=parse_duration,
    )  # fmt: skip
    tune_s: float = declare(
        _NORMAL.tune_s, "--tune",
        "time for tuning kernels; 0s disables tuning (default: set by --effort)",
        metavar="60s", parse=parse_duration, request_default=0.0,
    )  # fmt: skip
    workers: int = declare(2, "--workers", "worker processes (default {default})", parse=int)
    timeout_s: float = declare(
        30.0, "--timeout", "hard time limit of one candidate", metavar="30s", parse=parse_duration
    )
    memory_bytes: int = declare(
        4 << 30, "--memory", "hard memory limit of one worker process",
        metavar="4GiB", parse=parse_size,
    )  # fmt: skip
    seed: int = declare(0, "--seed", "seed of the generated inputs (default {default})", parse=int)
    end_to_end_plans: int = declare(4)
    verify_s: float = declare(
        2.0, "--verify", "benchmark time per plan or framework in the final comparison; up to ten "
        "times as long while the result is inconclusive",
        metavar="2s", parse=parse_duration,
    )  # fmt: skip
    keep_nan: bool = declare(
        False, "--keep-nan", "refuse kernels that hide NaN; the manifest lists them otherwise"
    )
    fallback: bool = declare(
        True, "--no-fallback", "never ship the original model on the fastest framework"
    )
    exact_only: bool = declare(
        False,
        "--exact-only",
        "answer the compiled shapes only: no original model in the bundle for others",
    )
    pad: tuple[str, ...] = declare(
        (), "--pad", "axis of an input that may be padded to a compiled shape; value: that of added "
        "elements (default 0); crop: axes of outputs that follow it (default: those of the same name)",
        metavar="INPUT:AXIS[,value=N][,crop=OUTPUT:AXIS+...]", parse=tuple, is_repeatable=True,
    )  # fmt: skip
    allow_slower: bool = declare(
        False, "--allow-slower", "write the bundle even if it is not proven as fast as the frameworks; "
        "publish, alias and serve refuse it",
        is_of_machine=True,
    )  # fmt: skip
    cache_dir: Path | None = declare(
        None,
        "--cache-dir",
        "local store (default: the user's cache)",
        parse=Path,
        is_of_machine=True,
    )
    store: str | None = declare(
        None, "--store", "shared store of costs: a directory or s3://bucket/prefix",
        metavar="STORE", is_of_machine=True,
    )  # fmt: skip

    def __post_init__(self) -> None:
        for name in ("measure_budget_s", "workers", "timeout_s", "memory_bytes", "verify_s"):
            if not getattr(self, name) > 0:
                raise OptionError(f"{name} must be above 0, not {getattr(self, name)}")
        for name in ("refine_s", "tune_s", "seed"):
            if not getattr(self, name) >= 0:
                raise OptionError(f"{name} must not be negative, it is {getattr(self, name)}")
        if self.device not in DEVICES:
            raise OptionError(f"unknown device {self.device!r}; there are {', '.join(DEVICES)}")
        if self.golden not in GOLDEN:
            raise OptionError(f"golden must be {' or '.join(GOLDEN)}, not {self.golden!r}")
        if self.threads is not None and self.threads < 1:
            raise OptionError(f"threads must be at least 1, not {self.threads}")
        for text in self.pad:
            parse_pad(text)
        if self.end_to_end_plans < 1:
            raise OptionError("end_to_end_plans must be at least 1")
        if self.precision not in set(Precision):
            choices = " or ".join(Precision)
            raise OptionError(f"precision must be {choices}, not {self.precision!r}")
        if not 0 < self.tolerance < math.inf:
            raise OptionError(f"tolerance must be above 0 and finite, not {self.tolerance}")

    def to_fields(self) -> dict[str, object]:
        """Return the fields of a request by name.

        Raises:
            OptionError: a backend is an object; other machines know backends by name only.
        """
        if any(not isinstance(backend, str) for backend in self.backends or ()):
            raise OptionError("a request names its backends; give names or module:Class")
        return {option.name: getattr(self, option.name) for option in request_fields()}

    @property
    def store_dir(self) -> Path:
        """The local store: `cache_dir`, else `collage` under the user's cache directory."""
        if self.cache_dir is not None:
            return self.cache_dir
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return Path(base) / "collage"

    @property
    def target(self) -> Target:
        """The device and its rules."""
        return Target(self.device)

    @property
    def may_reduce(self) -> bool:
        """Tell whether kernels may compute in less than float32."""
        return self.precision == Precision.AUTO

    @property
    def thread_count(self) -> int:
        return self.threads or physical_cores()


def request_fields() -> list[Field[Any]]:
    """Return the fields of `Options` that a request has: all but those of the machine that works on it."""
    return [option for option in fields(Options) if not declaration_of(option).is_of_machine]


def physical_cores() -> int:
    """Count the physical cores that this process may run on."""
    allowed = os.sched_getaffinity(0)
    cores = set()
    for cpu in allowed:
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            cores.add(topology.read_text().strip())
        except OSError:  # the kernel does not tell: the processor counts as a core
            cores.add(str(cpu))
    return max(1, len(cores))
