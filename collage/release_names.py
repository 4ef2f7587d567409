"""Names of one installation's objects on a server that several installations share.

Prefect identifies deployments, concurrency limits and repeated requests for a run by name: two installations
with equal names would share them. Each installation may have a release name, and its names end with
`@RELEASE`. Without a release name they are plain, for a server with one installation. No other name of
Collage contains `@`, so names of two releases always differ.
"""

RELEASE_PATTERN = r"^([a-z0-9]([a-z0-9.-]{0,118}[a-z0-9])?)?$"
"""Release names: those of Helm, and `NAMESPACE.RELEASE`; "" is none."""

OPTIMIZE_DEPLOYMENT = "optimize-model/optimize"


def released(name: str, release: str) -> str:
    """Return the name of a release's object.

    >>> released("collage-cpu", "models.collage"), released("collage-cpu", "")
    ('collage-cpu@models.collage', 'collage-cpu')
    """
    return f"{name}@{release}" if release else name
