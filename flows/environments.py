"""The compile service of each environment: this machine for `local`, the cluster for all others."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING

from collage.cluster.controller.environments import MeasuringEnvironment, read_environments
from collage.errors import OptionError
from collage.options import DeviceName
from collage.pipeline.compile_service import CompileService, LocalCompileService, check_device
from collage.runtime.target import Target
from collage.store.usage import BUILD_SUFFIX, NOBODY, WorkOwner
from flows.progress import warn_run
from flows.settings import LOCAL, FlowSettings
from flows.teams import run_limits

if TYPE_CHECKING:
    from collage.cluster.controller.compile_service import ClusterCompileService


def open_compile_service(
    environment: str,
    settings: FlowSettings,
    owner: WorkOwner = NOBODY,
    since: date | None = None,
) -> CompileService:
    """Open the compile service of an environment.

    Args:
        environment: name of the environment.
        settings: settings of the flow.
        owner: run, version and team that its Jobs work for.
        since: day of the run's start, UTC; None is the present one.

    Raises:
        OptionError: the environment is not configured.
    """
    if environment == LOCAL:
        return LocalCompileService(settings.store, settings.local_dir, settings.signing())
    _measuring_environment(environment, settings)
    return _cluster_service(settings).on_behalf_of(owner, run_limits(owner.team, settings), since)


def node_prices(settings: FlowSettings) -> dict[str, float | None]:
    """Return the price of a node-second of each place (`collage.store.usage`), None where unknown."""
    prices: dict[str, float | None] = {LOCAL: settings.price_per_node_second}
    for name, described in _environments(settings).items():
        prices[name] = described.price_per_node_second
        prices[name + BUILD_SUFFIX] = described.build.price_per_node_second
    return prices


def environment_names(settings: FlowSettings) -> tuple[str, ...]:
    """Return the names of the configured environments: the cluster's, else this machine alone."""
    return tuple(sorted(_environments(settings))) or (LOCAL,)


@dataclass(frozen=True)
class EnvironmentChoice:
    """The environment of a request: name, threads and device."""

    environment: str
    threads: int
    device: DeviceName


def chosen_environments(
    names: Sequence[str] | None, device: DeviceName | None, settings: FlowSettings
) -> tuple[EnvironmentChoice, ...]:
    """Return the environments of these names, or all of the device, or all.

    Raises:
        OptionError: an environment is not configured or has another device, or none has the device.
    """
    choices = tuple(_choice(name, settings) for name in names or environment_names(settings))
    if not names:
        choices = tuple(choice for choice in choices if device in (None, choice.device))
    for choice in choices:
        check_device(choice.environment, choice.device, device)
    if not choices:
        configured = ", ".join(environment_names(settings))
        raise OptionError(
            f"no environment is for {device}, there are {configured}: describe one with device: {device}"
            + (
                " and gpuResource: nvidia.com/gpu"
                if device is not None and Target(device).is_gpu
                else ""
            )
        )
    return choices


def _choice(environment: str, settings: FlowSettings) -> EnvironmentChoice:
    if environment == LOCAL:
        return EnvironmentChoice(LOCAL, settings.threads, settings.device)
    described = _measuring_environment(environment, settings)
    return EnvironmentChoice(environment, described.threads, described.device)


def _measuring_environment(environment: str, settings: FlowSettings) -> MeasuringEnvironment:
    configured = _environments(settings)
    if environment not in configured:
        names = ", ".join([LOCAL, *sorted(configured)])
        raise OptionError(f"no environment {environment!r} is configured; there are: {names}")
    return configured[environment]


def _environments(settings: FlowSettings) -> dict[str, MeasuringEnvironment]:
    if settings.environments_file is None:
        return {}

    return read_environments(settings.environments_file)


def _cluster_service(settings: FlowSettings) -> "ClusterCompileService":
    """Return the service of this process; it caches the information of nodes."""
    if settings.cluster is None:
        raise OptionError("the cluster is not configured: set COLLAGE_CLUSTER__MEASURE_IMAGE")
    key = settings.model_dump_json()  # mappings among the settings have no hash
    if key not in _cluster_services:
        from collage.cluster.controller.compile_service import ClusterCompileService

        service = ClusterCompileService(
            settings.store,
            settings.local_dir,
            settings.cluster,
            _environments(settings),
            notice=warn_run,
        )
        return _cluster_services.setdefault(key, service)
    return _cluster_services[key]


_cluster_services: dict[str, "ClusterCompileService"] = {}
"""Services of this process, by their settings."""
