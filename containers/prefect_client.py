"""The HTTP client of Prefect's API for programs without Prefect."""

from typing import Protocol

import httpx
from pydantic import SecretStr

TIMEOUT_S = 15.0


class PrefectCredentials(Protocol):
    """Credentials of the API; both None for a server without authentication."""

    @property
    def prefect_api_key(self) -> SecretStr | None: ...

    @property
    def prefect_auth(self) -> SecretStr | None: ...


def prefect_client(credentials: PrefectCredentials) -> httpx.AsyncClient:
    """Return a client with these credentials."""
    headers = {}
    auth = None
    if credentials.prefect_api_key:
        headers["Authorization"] = f"Bearer {credentials.prefect_api_key.get_secret_value()}"
    elif credentials.prefect_auth:
        user, _, password = credentials.prefect_auth.get_secret_value().partition(":")
        auth = httpx.BasicAuth(user, password)
    return httpx.AsyncClient(headers=headers, auth=auth, timeout=TIMEOUT_S)
