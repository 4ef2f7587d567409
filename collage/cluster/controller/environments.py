"""Measuring environments: which nodes measure, with what, as the operator's file describes them.

    h200:                           # a name of the operator's
      device: cuda
      gpuResource: nvidia.com/gpu
      threads: 4
      cpu: 6                        # whole CPUs: Guaranteed pods with whole CPUs may have cores of their own
      memory: 16Gi
      nodeSelector: {pool: measure}

An environment is a kind of node, a device of it and a number of threads: a pool with GPUs may be two
environments, one that measures for the GPU and one for the processor beside it. The file is YAML (JSON is
YAML too): a mapping of names. A typo in it is an error that names the key.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from collage.errors import OptionError
from collage.options import DeviceName

DEFAULT_FILE = Path("/etc/collage/environments.yaml")
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,28}[a-z0-9])?")


class _Entry(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, validate_by_name=True
    )


class Toleration(_Entry):
    """As in a pod."""

    key: str | None = None
    operator: Literal["Exists", "Equal"] | None = None
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: int | None = None


_MEMORY = r"^[1-9][0-9]*(Ki|Mi|Gi|Ti|k|M|G|T)?$"


class BuildSettings(_Entry):
    """Where kernels are built, when not by the pods that measure them.

    Attributes:
        separate: build in Jobs of their own, and let measuring pods only load kernels; by default only
            where the measuring pods have a GPU, which is too dear to wait for a compiler.
        overlap: start to measure while kernels are still built, as soon as pods would not wait for them.
        cpu, memory: of a building pod.
        parallelism: building pods at once.
    """

    separate: bool | None = None
    overlap: bool = True
    cpu: int = Field(default=2, ge=1)
    memory: str = Field(default="4Gi", pattern=_MEMORY)
    node_selector: Mapping[str, str] = Field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    priority_class_name: str = ""
    queue_name: str = ""
    parallelism: int = Field(default=4, ge=1)


class MeasuringEnvironment(_Entry):
    """Nodes that are alike, and how a Job uses them.

    Attributes:
        device: where the kernels run; "cuda" unless said otherwise where there is a `gpu_resource`.
        threads: of every kernel.
        cpu: whole CPUs of a measuring pod; those beyond `threads` build.
        memory: of a measuring pod, as Kubernetes writes it.
        scratch_size: of the folder for a pod's files, the only one that it can write; a pod that writes
            more is evicted.
        gpu_resource: the extended resource that pods which time something ask for, e.g. `nvidia.com/gpu`.
        runtime_class_name: of those pods, where the nodes' default runtime shows them no GPU.
        queue_name: of Kueue; "" where Kueue does not queue.
        parallelism: pods at once; there is at most one on a node.
        backend_groups: backends whose candidates share a Job, by the group's name; a backend that is not
            named is in the group that it declares (`Backend.group`: graph, library, native).
        seconds_per_group: expected work below which a group shares the Job of another one.
        seconds_per_shard: expected work of one pod; what an eviction can make a node repeat is in the
            store every few seconds, so this only balances pods' start-up time against waiting for the last.
        deadline_seconds: that pods of one Job may run; waiting does not count.
        queue_seconds: that one Job may wait for nodes, images or quota; running does not count.
        ttl_seconds: after which a finished Job goes away.
        control_tolerance: relative difference of a pod's pace from the usual one (`records`) from which
            its costs are discarded and measured again, once.
        build: where kernels are built.
    """

    device: DeviceName = "cpu"
    threads: int = Field(default=1, ge=1)
    cpu: int = Field(default=2, ge=1)
    memory: str = Field(default="4Gi", pattern=_MEMORY)
    scratch_size: str = Field(default="20Gi", pattern=_MEMORY)
    node_selector: Mapping[str, str] = Field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    gpu_resource: str = ""
    gpu_count: int = Field(default=1, ge=1)
    runtime_class_name: str = ""
    priority_class_name: str = ""
    queue_name: str = ""
    parallelism: int = Field(default=4, ge=1)
    backend_groups: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)
    seconds_per_group: float = Field(default=60.0, ge=0)
    seconds_per_shard: float = Field(default=300.0, gt=0)
    deadline_seconds: int = Field(default=7200, ge=1)
    queue_seconds: int = Field(default=43200, ge=1)
    ttl_seconds: int = Field(default=86400, ge=0)
    control_tolerance: float = Field(default=0.25, gt=0)
    build: BuildSettings = BuildSettings()

    @property
    def builds_apart(self) -> bool:
        """Whether kernels are built in Jobs of their own."""
        return bool(self.gpu_resource) if self.build.separate is None else self.build.separate

    @property
    def for_builds(self) -> "MeasuringEnvironment":
        """The nodes that build, as if they were to measure; without a GPU."""
        own = {name: getattr(self.build, name) for name in BuildSettings.model_fields}
        del own["separate"], own["overlap"]
        return self.model_copy(update={**own, "gpu_resource": "", "runtime_class_name": ""})

    @model_validator(mode="before")
    @classmethod
    def _device_of_the_resource(cls, values: Any) -> Any:
        if not isinstance(values, dict) or values.get("device") is not None:
            return values
        gpu = values.get("gpuResource") or values.get("gpu_resource")
        return {**values, "device": "cuda" if gpu else "cpu"}

    @model_validator(mode="after")
    def _gpu_to_run_on(self) -> "MeasuringEnvironment":
        if self.device == "cuda" and not self.gpu_resource:
            raise ValueError(
                "device cuda needs gpuResource, the resource that the nodes offer (nvidia.com/gpu)"
            )
        return self

    @model_validator(mode="after")
    def _enough_cpus(self) -> "MeasuringEnvironment":
        if self.cpu < self.threads:
            raise ValueError(f"cpu ({self.cpu}) must be at least threads ({self.threads})")
        return self

    @model_validator(mode="after")
    def _one_group_each(self) -> "MeasuringEnvironment":
        named = [backend for group in self.backend_groups.values() for backend in group]
        if twice := sorted({one for one in named if named.count(one) > 1}):
            raise ValueError(f"backendGroups: {', '.join(twice)} in more than one group")
        return self


def read_environments(file: Path) -> dict[str, MeasuringEnvironment]:
    """Read the operator's file.

    Raises:
        OptionError: there is no such file, or something in it is wrong; names the place.
    """
    try:
        content = yaml.safe_load(file.read_text())
    except OSError as error:
        raise OptionError(
            f"{file}: {error.strerror}; set COLLAGE_ENVIRONMENTS_FILE to a file that describes the "
            "measuring environments"
        ) from error
    except yaml.YAMLError as error:
        raise OptionError(f"{file}: no YAML: {error}") from error
    return parse_environments(content, str(file))


def parse_environments(content: object, where: str) -> dict[str, MeasuringEnvironment]:
    """Check a mapping of names to settings. Raises OptionError that names the place in `where`."""
    if not isinstance(content, dict) or not content:
        raise OptionError(f"{where}: write a mapping of environment names, at least one")
    found = {}
    for name, entry in content.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise OptionError(
                f"{where}: {name!r} cannot name an environment: at most 30 of a-z, 0-9 and '-'"
            )
        try:
            found[name] = MeasuringEnvironment.model_validate(entry or {})
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join((name, *map(str, first["loc"])))
            raise OptionError(f"{where}: {place}: {first['msg']}") from error
    return found
