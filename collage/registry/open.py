"""Opening of a registry by its address: `mlflow+https://host`, `mlflow://`, a folder, or `s3://bucket/prefix?...`."""

import os
from urllib.parse import urlsplit

from collage.errors import OptionError
from collage.registry.base import Registry, check_aliases
from collage.registry.files import FileRegistry
from collage.store import open_store

_MLFLOW = ("mlflow+http", "mlflow+https", "mlflow")


def open_registry(
    address: str, *, alias: str = "candidate", accepted: str = "optimized"
) -> Registry:
    """Open the registry at `address`, without a request to MLflow.

    >>> open_registry("mlflow+http://mlflow.models.svc:5000")  # doctest: +SKIP

    Args:
        address: `mlflow+http(s)://host:port`, `mlflow://` for the server in MLFLOW_TRACKING_URI, a folder, or
            `s3://bucket/prefix` with the settings of a store.
        alias: request alias, of versions to optimize.
        accepted: result alias, of versions with a passed gate.

    Raises:
        OptionError: an invalid address, or a missing package.
        RegistryError: equal aliases.
    """
    check_aliases(alias, accepted)
    scheme = address.partition("://")[0] if "://" in address else ""
    if scheme not in _MLFLOW:
        return FileRegistry(open_store(address), alias, accepted)
    url = _mlflow_url(address)
    try:
        from collage.registry.mlflow_server import MlflowRegistry
    except ImportError as error:
        raise OptionError(
            f"a registry in MLflow needs its client ({error}): pip install 'collage[mlflow]'"
        ) from error
    return MlflowRegistry(url, alias, accepted)


def _mlflow_url(address: str) -> str:
    url = address.removeprefix("mlflow+")
    if address.startswith("mlflow://"):
        url = os.environ.get("MLFLOW_TRACKING_URI", "")
        if address != "mlflow://" or not url:
            raise OptionError(
                "the registry mlflow:// is the server that MLFLOW_TRACKING_URI names; set it, or write "
                "mlflow+http://host:port"
            )
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise OptionError("the registry is no MLflow server: write mlflow+http(s)://host:port")
    if "@" in parts.netloc:
        raise OptionError(
            "the registry's address holds credentials; give them as MLFLOW_TRACKING_USERNAME and "
            "MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
        )
    return url.rstrip("/")
