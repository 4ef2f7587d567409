"""Settings of the flows from environment variables: `COLLAGE_STORE`, `COLLAGE_REGISTRY` and so on."""

import os
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from collage.cluster.controller.settings import ClusterSettings
from collage.options import DeviceName, Options, physical_cores
from collage.release_names import OPTIMIZE_DEPLOYMENT, RELEASE_PATTERN, released
from collage.runtime.signature import named_sources
from collage.settings import CollageSettings
from collage.store.aliases import AliasSigning
from collage.store.usage_limits import Limit

LOCAL = "local"
"""Name of the environment of the flow's own machine."""


class CostLimits(BaseModel):
    """Limits of usage, in seconds of nodes and of GPUs; a day is one of UTC.

    Attributes:
        run_node_seconds: limit of one run.
        model_node_seconds: limit of one model in a day.
        team_node_seconds: limit of one team in a day.
        day_node_seconds: limit of all runs in a day.
        run_gpu_seconds: as above, of GPUs.
        model_gpu_seconds: as above, of GPUs.
        team_gpu_seconds: as above, of GPUs.
        day_gpu_seconds: as above, of GPUs.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_node_seconds: float | None = Field(default=None, gt=0)
    model_node_seconds: float | None = Field(default=None, gt=0)
    team_node_seconds: float | None = Field(default=None, gt=0)
    day_node_seconds: float | None = Field(default=None, gt=0)
    run_gpu_seconds: float | None = Field(default=None, gt=0)
    model_gpu_seconds: float | None = Field(default=None, gt=0)
    team_gpu_seconds: float | None = Field(default=None, gt=0)
    day_gpu_seconds: float | None = Field(default=None, gt=0)

    @property
    def limits(self) -> tuple[Limit, ...]:
        """The limits that are set, each with the name of its setting."""
        limits = []
        for scope in ("run", "model", "team", "day"):
            for unit, name in (("node", "node_s"), ("gpu", "gpu_s")):
                field = f"{scope}_{unit}_seconds"
                if (seconds := getattr(self, field)) is not None:
                    setting = f"COLLAGE_LIMITS__{field.upper()}"
                    limits.append(Limit(scope, **{name: seconds}, setting=setting))
        return tuple(limits)


class FlowSettings(CollageSettings):
    """Settings of every flow; constructed at the start of a flow or task, never at import."""

    store: str = Field(
        description="address of the shared store: a folder, or s3://bucket/prefix?..."
    )
    release: str = Field(
        default="",
        pattern=RELEASE_PATTERN,
        description="name of this installation among those of one Prefect server; empty: plain names",
    )
    cache_dir: Path | None = Field(
        default=None, description="local folder for costs; default: the user's cache directory"
    )
    registry: str = Field(
        default="", description="address of the model registry; none: only files can be optimized"
    )
    alias: str = Field(default="candidate", description="alias of the versions to optimize")
    accepted: str = Field(default="optimized", description="alias set once all gates have passed")
    threads: int = Field(
        default_factory=physical_cores, ge=1, description="threads of the environment `local`"
    )
    device: DeviceName = Field(
        default="cpu", description="where the kernels of the environment `local` run"
    )
    environments_file: Path | None = Field(
        default=None, description="YAML with the cluster's measuring environments by name"
    )
    cluster: ClusterSettings | None = Field(
        default=None, description="where Jobs are made: COLLAGE_CLUSTER__NAMESPACE and so on"
    )
    slots: int = Field(
        default=1, ge=1, description="flows that may measure in one environment at a time"
    )
    lease_s: float = Field(
        default=60.0, ge=60.0, description="how long a killed flow keeps its slot"
    )
    retries: int = Field(default=3, ge=0, description="of a task, after infrastructure failed")
    retry_delay_s: float = Field(default=10.0, gt=0, description="before the first; then doubled")
    progress_every_s: float = Field(default=5.0, gt=0, description="between reports of progress")
    deployment: str = Field(
        default="",
        description="what reconcile starts runs of; empty: optimize-model/optimize of the release",
    )
    attempts: int = Field(
        default=5, ge=1, description="runs that reconcile starts for a version that keeps failing"
    )
    report_link_s: float = Field(
        default=0.0,
        ge=0,
        le=7 * 86400,
        description="how long the link to a report opens without credentials; 0: the object's address",
    )
    report_base: str = Field(
        default="",
        pattern=r"^(https?://[^@\s]+)?$",
        description="address of a gateway to the store; with the report's key behind it, it is the link",
    )
    work_pool: str = Field(default="collage", description="where deployments run")
    work_pool_type: Literal["process", "kubernetes"] = "process"
    image: str = Field(default="", description="of the flow's pods, in a pool of type kubernetes")
    reconcile_cron: str = Field(default="*/10 * * * *", description="for lost webhooks")
    environment_cron: str = Field(default="0 3 * * *", description="for changed environments")
    garbage_cron: str = Field(default="0 4 * * 0", description="lists what could be deleted")

    limits: CostLimits = Field(
        default_factory=CostLimits,
        description="of node-seconds and GPU-seconds: COLLAGE_LIMITS__TEAM_NODE_SECONDS and so on",
    )
    runs: int = Field(
        default=100, ge=1, description="under way at a time, to which reconcile starts more"
    )
    teams_file: Path | None = Field(
        default=None, description="YAML with the teams by name: runs at a time, budgets, queues"
    )
    price_per_node_second: float | None = Field(
        default=None, ge=0, description="of the environment `local`, in your currency"
    )

    notify_block: str = Field(
        default="",
        pattern=r"^([a-z0-9-]+/[a-z0-9-]+)?$",
        description="notification block of Prefect that is told of failed runs, as TYPE/NAME",
    )
    sign_key: Path | None = Field(
        default=None, description="private Ed25519 key (PEM) that signs bundles and aliases"
    )
    verify_keys: str = Field(
        default="", description="files and folders of further public keys that aliases trust"
    )

    def signing(self) -> AliasSigning | None:
        """Return the signing of aliases and bundles, None without a key. Raises OptionError for a bad key."""
        return AliasSigning.configured(self.sign_key, named_sources(self.verify_keys))

    @property
    def optimize_deployment(self) -> str:
        """Deployment that reconcile starts runs of, as `flow/name`."""
        return self.deployment or released(OPTIMIZE_DEPLOYMENT, self.release)

    @property
    def local_dir(self) -> Path:
        """The local store."""
        return Options(cache_dir=self.cache_dir).store_dir


def release_name() -> str:
    """Return the release's name, for records of a run: they need no other setting."""
    return os.environ.get("COLLAGE_RELEASE", "")


def flow_settings() -> FlowSettings:
    """Read the settings. Raises OptionError with the absent, invalid or unknown setting."""
    return FlowSettings.load()
