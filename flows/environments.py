"""Where a request is worked on: this machine for the environment `local`, the cluster for all others."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from collage.errors import OptionError
from collage.options import DeviceName
from collage.pipeline.compile_service import LocalSite, Site, check_device
from flows.settings import LOCAL, FlowSettings

if TYPE_CHECKING:
    from collage.cluster.controller.compile_service import ClusterCompileService
    from collage.cluster.controller.environments import MeasuringEnvironment


def open_site(environment: str, settings: FlowSettings) -> Site:
    """Open the site of an environment.

    Raises:
        OptionError: no environment of this name is configured.
    """
    if environment == LOCAL:
        return LocalSite(settings.store, settings.local_dir, settings.signing())
    _described(environment, settings)
    return _cluster_site(settings)


def environment_names(settings: FlowSettings) -> tuple[str, ...]:
    """Name the configured environments: the cluster's, else this machine alone."""
    return tuple(sorted(_environments(settings))) or (LOCAL,)


@dataclass(frozen=True)
class Where:
    """What a request says of the environment that it is for."""

    environment: str
    threads: int
    device: DeviceName


def chosen_environments(
    names: Sequence[str] | None, device: DeviceName | None, settings: FlowSettings
) -> tuple[Where, ...]:
    """Return the environments of these names, or all of the device, or all.

    Raises:
        OptionError: one is not configured, or is of another device than is asked for, or none is of it.
    """
    found = tuple(_where(name, settings) for name in names or environment_names(settings))
    if not names:
        found = tuple(one for one in found if device in (None, one.device))
    for one in found:
        check_device(one.environment, one.device, device)
    if not found:
        known = ", ".join(environment_names(settings))
        raise OptionError(
            f"no environment is for {device}, there are {known}: describe one with device: {device}"
            + (" and gpuResource: nvidia.com/gpu" if device == "cuda" else "")
        )
    return found


def _where(environment: str, settings: FlowSettings) -> Where:
    if environment == LOCAL:
        return Where(LOCAL, settings.threads, settings.device)
    found = _described(environment, settings)
    return Where(environment, found.threads, found.device)


def _described(environment: str, settings: FlowSettings) -> "MeasuringEnvironment":
    known = _environments(settings)
    if environment not in known:
        names = ", ".join([LOCAL, *sorted(known)])
        raise OptionError(f"no environment {environment!r} is configured; there are: {names}")
    return known[environment]


def _environments(settings: FlowSettings) -> "dict[str, MeasuringEnvironment]":
    if settings.environments_file is None:
        return {}
    from collage.cluster.controller.environments import read_environments

    return read_environments(settings.environments_file)


@functools.cache
def _cluster_site(settings: FlowSettings) -> "ClusterCompileService":
    """One for the process: it remembers what the nodes have said of themselves."""
    from collage.cluster.controller.compile_service import ClusterCompileService

    if settings.cluster is None:
        raise OptionError("the cluster is not configured: set COLLAGE_CLUSTER__MEASURE_IMAGE")
    return ClusterCompileService(
        settings.store, settings.local_dir, settings.cluster, _environments(settings)
    )
