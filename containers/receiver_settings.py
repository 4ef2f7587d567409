"""What the receiver is told by environment variables; docs/registry.md lists those that matter."""

from pathlib import Path
from typing import Any, Literal

from pydantic import AliasChoices, Field, SecretStr, model_validator
from pydantic_settings import SettingsConfigDict

from collage.release_names import OPTIMIZE_DEPLOYMENT, RELEASE_PATTERN, released
from collage.settings import CollageSettings
from containers.connections import ConnectionLimits
from containers.listening import EVERY_ADDRESS


class ReceiverSettings(CollageSettings):
    """What the receiver is told: `COLLAGE_RECEIVER__SECRET` and so on."""

    model_config = SettingsConfigDict(env_prefix="COLLAGE_RECEIVER__", populate_by_name=True)

    secret: SecretStr = Field(min_length=16, description="shared with MLflow's webhook")
    previous_secret: SecretStr | None = Field(
        default=None, min_length=16, description="also accepted, while secrets are rotated"
    )
    registry: str = Field(
        default="mlflow",
        validation_alias=AliasChoices("COLLAGE_RECEIVER__REGISTRY", "COLLAGE_REGISTRY"),
        description="the registry's address, as the flows have it",
    )
    alias: str = Field(
        default="candidate",
        validation_alias=AliasChoices("COLLAGE_RECEIVER__ALIAS", "COLLAGE_ALIAS"),
        description="alias that asks for a run",
    )
    release: str = Field(
        default="",
        pattern=RELEASE_PATTERN,
        validation_alias=AliasChoices("COLLAGE_RECEIVER__RELEASE", "COLLAGE_RELEASE"),
        description="name of this installation among those of one Prefect server, as the flows have it",
    )
    deployment: str = Field(
        default="",
        pattern=r"^([^/]+/[^/]+)?$",
        validation_alias=AliasChoices("COLLAGE_RECEIVER__DEPLOYMENT", "COLLAGE_DEPLOYMENT"),
        description="Prefect deployment to run, flow/name; empty: optimize-model/optimize of the release",
    )
    device: Literal["", "cpu", "cuda"] = Field(
        default="", description="start runs for environments of this device alone; empty: for all"
    )
    prefect_api_url: str = Field(
        pattern=r"^https?://[^@]+$",
        validation_alias=AliasChoices("COLLAGE_RECEIVER__PREFECT_API_URL", "PREFECT_API_URL"),
        description="address of Prefect's API",
    )
    prefect_api_key: SecretStr | None = Field(
        default=None,
        validation_alias=AliasChoices("COLLAGE_RECEIVER__PREFECT_API_KEY", "PREFECT_API_KEY"),
        description="of Prefect Cloud",
    )
    prefect_auth: SecretStr | None = Field(
        default=None,
        validation_alias=AliasChoices("COLLAGE_RECEIVER__PREFECT_AUTH", "PREFECT_API_AUTH_STRING"),
        description="user:password of a Prefect server behind basic authentication",
    )
    journal: Path = Field(
        default=Path("/var/lib/collage/receiver.db"),
        description="small file that must survive restarts",
    )
    host: str = Field(
        default=EVERY_ADDRESS, description="address to listen on; `::` is every IPv4 and IPv6 one"
    )
    port: int = Field(default=8080, ge=1, le=65535, description="port for webhooks")
    status_port: int = Field(
        default=8081,
        ge=1,
        le=65535,
        description="port for probes and metrics, for the cluster alone",
    )
    head_s: float = Field(default=10.0, gt=0, description="a request's head may take")
    body_s: float = Field(default=10.0, gt=0, description="a body may take")
    idle_s: float = Field(default=10.0, gt=0, description="a connection may stay between requests")
    write_s: float = Field(default=10.0, gt=0, description="a client may take to read its answer")
    drain_s: float = Field(
        default=5.0,
        ge=0,
        description="between SIGTERM, which makes it unready, and the end of the port",
    )
    connections: int = Field(
        default=200, ge=1, description="then the one that was idle for longest is closed"
    )
    attempts: int = Field(default=12, ge=1, description="to start one run, in about 7 minutes")
    max_starts: int = Field(default=1000, ge=1, description="runs that may wait to be started")

    @model_validator(mode="before")
    @classmethod
    def _no_empty_secrets(cls, values: dict[str, Any]) -> dict[str, Any]:
        """An optional secret that the chart leaves empty is none."""
        return {name: value for name, value in values.items() if value != ""}

    @property
    def optimize_deployment(self) -> str:
        """Deployment that webhooks start runs of, as `flow/name`."""
        return self.deployment or released(OPTIMIZE_DEPLOYMENT, self.release)

    def limits(self) -> ConnectionLimits:
        """Return the limits of each port."""
        return ConnectionLimits(self.connections, self.head_s, self.idle_s, self.write_s)

    def secrets(self) -> tuple[bytes, ...]:
        """Return the secrets in force."""
        secrets = (self.secret, self.previous_secret)
        return tuple(secret.get_secret_value().encode() for secret in secrets if secret)
