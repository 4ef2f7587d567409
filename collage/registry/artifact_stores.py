"""Where an MLflow server keeps the files of versions, and what a reader needs to reach them.

A server that proxies its artifacts (`mlflow server --artifacts-destination ...`) answers for them itself. One
that does not names the place, and the client goes there with a library and credentials of its own. Each such
library raises errors of its own kind, so the advice follows from the address.
"""

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from collage.logs import redact

_PROXIED = ("mlflow-artifacts", "http", "https")
_PROXY = "or let the MLflow server hand out its files (--serve-artifacts --artifacts-destination)"


@dataclass(frozen=True, slots=True)
class _ArtifactStore:
    """Packages of a store's client, and the variables with its credentials."""

    packages: str
    credentials: str


_AZURE = "AZURE_STORAGE_CONNECTION_STRING, AZURE_STORAGE_ACCESS_KEY or an identity of Azure"
_STORES = {
    "s3": _ArtifactStore(
        "boto3",
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or a role of the pod, and MLFLOW_S3_ENDPOINT_URL where "
        "the bucket is not on AWS",
    ),
    "gs": _ArtifactStore("google-cloud-storage", "GOOGLE_APPLICATION_CREDENTIALS or an identity"),
    "wasbs": _ArtifactStore("azure-storage-blob azure-identity", _AZURE),
    "abfss": _ArtifactStore("azure-storage-file-datalake azure-identity", _AZURE),
}


def is_proxied(address: str) -> bool:
    """Tell whether the MLflow server itself hands out the files at the address.

    >>> is_proxied("mlflow-artifacts:/0/abc/artifacts/model"), is_proxied("s3://bucket/0/abc")
    (True, False)
    """
    return urlsplit(address).scheme in _PROXIED


def missing_folder(address: str) -> str:
    """Return the folder that the address names and this machine lacks; "" for other addresses."""
    parts = urlsplit(address)
    if parts.scheme not in ("", "file"):
        return ""
    folder = Path(unquote(parts.path))
    return "" if folder.exists() else str(folder)


def store_advice(address: str, error: Exception) -> str:
    """Return what failed at an address outside of the MLflow server, and what to do."""
    scheme = urlsplit(address).scheme or "file"
    text = redact(" ".join(str(error).split()))[:500]
    failure = f"{type(error).__name__}: {text}".rstrip(": ")
    store = _STORES.get(scheme)
    if isinstance(error, ImportError):
        packages = store.packages if store else f"the client of {scheme}://"
        return f"{failure}. Install {packages} here, {_PROXY}"
    credentials = store.credentials if store else f"what the client of {scheme}:// needs"
    return f"{failure}. Give this program access ({credentials}), {_PROXY}"
