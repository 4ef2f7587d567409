"""Where a request is worked on: this machine for the environment `local`, a cluster for all others."""

from collage.errors import OptionError
from collage.pipeline.site import LocalSite, Site
from flows.settings import LOCAL, FlowSettings


def open_site(environment: str, settings: FlowSettings) -> Site:
    """Open the site of an environment.

    Raises:
        OptionError: no environment of this name is configured.
    """
    if environment == LOCAL:
        return LocalSite(settings.store, settings.local_dir)
    return _cluster_site(environment, settings)


def environment_threads(environment: str, settings: FlowSettings) -> int:
    """Return the threads of every kernel there. Raises OptionError for an unknown environment."""
    if environment == LOCAL:
        return settings.threads
    raise OptionError(environment)


def environment_names(settings: FlowSettings) -> tuple[str, ...]:
    """Name the configured environments: the cluster's, else this machine alone."""
    return (LOCAL,)


def _cluster_site(environment: str, settings: FlowSettings) -> Site:
    raise OptionError(environment)
