"""Where a request is worked on: this machine for the environment `local`, the cluster for all others."""

import functools
from typing import TYPE_CHECKING

from collage.errors import OptionError
from collage.pipeline.site import LocalSite, Site
from flows.settings import LOCAL, FlowSettings

if TYPE_CHECKING:
    from collage.cluster.environments import MeasuringEnvironment
    from collage.cluster.site import ClusterSite


def open_site(environment: str, settings: FlowSettings) -> Site:
    """Open the site of an environment.

    Raises:
        OptionError: no environment of this name is configured.
    """
    if environment == LOCAL:
        return LocalSite(settings.store, settings.local_dir)
    _described(environment, settings)
    return _cluster_site(settings)


def environment_names(settings: FlowSettings) -> tuple[str, ...]:
    """Name the configured environments: the cluster's, else this machine alone."""
    return tuple(sorted(_environments(settings))) or (LOCAL,)


def environment_threads(environment: str, settings: FlowSettings) -> int:
    """Return the threads of every kernel there. Raises OptionError for an unknown environment."""
    return settings.threads if environment == LOCAL else _described(environment, settings).threads


def _described(environment: str, settings: FlowSettings) -> "MeasuringEnvironment":
    known = _environments(settings)
    if environment not in known:
        names = ", ".join([LOCAL, *sorted(known)])
        raise OptionError(f"no environment {environment!r} is configured; there are: {names}")
    return known[environment]


def _environments(settings: FlowSettings) -> "dict[str, MeasuringEnvironment]":
    if settings.environments_file is None:
        return {}
    from collage.cluster.environments import read_environments

    return read_environments(settings.environments_file)


@functools.cache
def _cluster_site(settings: FlowSettings) -> "ClusterSite":
    """One for the process: it remembers what the nodes have said of themselves."""
    from collage.cluster.site import ClusterSite

    if settings.cluster is None:
        raise OptionError("the cluster is not configured: set COLLAGE_CLUSTER__MEASURE_IMAGE")
    return ClusterSite(
        settings.store, settings.local_dir, settings.cluster, _environments(settings)
    )
