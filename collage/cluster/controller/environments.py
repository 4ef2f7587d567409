"""Measuring environments: kinds of nodes and their use by Jobs, from the operator's file.

    h200:                           # a name of the operator's
      device: cuda
      gpuResource: nvidia.com/gpu
      threads: 4
      cpu: 6                        # whole CPUs: Guaranteed pods with whole CPUs may have cores of their own
      memory: 16Gi
      nodeSelector: {pool: measure}

An environment is a kind of node, one of its devices and a number of threads: a pool with GPUs may be two
environments, one for the GPU and one for the processor beside it. The file is YAML (JSON included): a
mapping of names to settings. An unknown key is an error with its name.
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
from collage.runtime.target import Target

DEFAULT_FILE = Path("/etc/collage/environments.yaml")
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,28}[a-z0-9])?")


class Entry(BaseModel):
    """A part of an operator's values: closed, and named as Kubernetes names it."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, validate_by_name=True
    )


class Toleration(Entry):
    """A toleration, as in a pod."""

    key: str | None = None
    operator: Literal["Exists", "Equal"] | None = None
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: int | None = None


_MEMORY = r"^[1-9][0-9]*(Ki|Mi|Gi|Ti|k|M|G|T)?$"


class BuildSettings(Entry):
    """Nodes and resources of build Jobs.

    Attributes:
        separate: True builds in separate Jobs, so that measuring pods only load kernels; None does so only
            if the measuring pods have a GPU, too expensive to wait for a compiler.
        overlap: True starts to measure before the last build, as soon as pods hardly wait for kernels.
        cpu: whole CPUs of a building pod.
        memory: memory of a building pod, as Kubernetes writes it.
        parallelism: largest number of simultaneous building pods.
        price_per_node_second: price of a second of such a node, in the operator's currency; None: unknown.
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
    price_per_node_second: float | None = Field(default=None, ge=0)


class MeasuringEnvironment(Entry):
    """Identical nodes, and their use by Jobs.

    Attributes:
        device: device of the kernels; the default is "cuda" with a `gpu_resource`, else "cpu".
        threads: threads of every kernel.
        cpu: whole CPUs of a measuring pod; CPUs beyond `threads` build kernels.
        memory: memory of a measuring pod, as Kubernetes writes it.
        scratch_size: size of a pod's only writable folder; Kubernetes evicts a pod above it.
        gpu_resource: extended resource of pods that time kernels, e.g. `nvidia.com/gpu`.
        runtime_class_name: runtime class of those pods, if the nodes' default runtime shows them no GPU.
        queue_name: queue of Kueue; "" without Kueue.
        parallelism: largest number of simultaneous pods, at most one on each node.
        backend_groups: backends of each group, by the group's name; other backends stay in the group that
            they declare (`Backend.group`: graph, library, native).
        seconds_per_group: least expected work for a Job of a group's own, in seconds.
        seconds_per_shard: expected work of one pod, in seconds. It balances the start-up time of pods
            against idle nodes at the end; an eviction repeats little, because pods flush every few seconds.
        deadline_seconds: limit of a Job's running time, without its waiting time.
        queue_seconds: limit of a Job's waiting time for nodes, images or quota.
        ttl_seconds: lifetime of a finished Job.
        control_tolerance: largest relative change of a control time (`cluster.shard_reports`); costs of a
            pod above it are discarded and measured again, once.
        price_per_node_second: price of a second of a node, in the operator's currency; None: unknown.
        build: nodes and resources of build Jobs.
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
    price_per_node_second: float | None = Field(default=None, ge=0)
    build: BuildSettings = BuildSettings()

    @property
    def builds_separately(self) -> bool:
        """Whether kernels are built in separate Jobs."""
        return bool(self.gpu_resource) if self.build.separate is None else self.build.separate

    @property
    def build_environment(self) -> "MeasuringEnvironment":
        """The environment of build Jobs: this one with the `build` settings and without a GPU."""
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
        if Target(self.device).is_gpu and not self.gpu_resource:
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
        if duplicates := sorted({member for member in named if named.count(member) > 1}):
            raise ValueError(f"backendGroups: {', '.join(duplicates)} in more than one group")
        return self


def read_environments(file: Path) -> dict[str, MeasuringEnvironment]:
    """Read the operator's file.

    Raises:
        OptionError: the file is absent or invalid; the message names the place.
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


def parse_environments(content: object, source: str) -> dict[str, MeasuringEnvironment]:
    """Parse a mapping of names to settings. Raises OptionError with the place in `source`."""
    if not isinstance(content, dict) or not content:
        raise OptionError(f"{source}: write a mapping of environment names, at least one")
    environments = {}
    for name, entry in content.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise OptionError(
                f"{source}: {name!r} cannot name an environment: at most 30 of a-z, 0-9 and '-'"
            )
        try:
            environments[name] = MeasuringEnvironment.model_validate(entry or {})
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join((name, *map(str, first["loc"])))
            raise OptionError(f"{source}: {place}: {first['msg']}") from error
    return environments
