"""What the controller is told about its cluster: COLLAGE_CLUSTER__NAMESPACE and so on."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from collage.cluster.controller.environments import DEFAULT_FILE
from collage.settings import CollageSettings


class SigningSecret(BaseModel):
    """A Secret's name, and the name in it of the private key (Ed25519, PEM)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    key: str = "key.pem"


class ClusterSettings(BaseModel):
    """Where Jobs are made and what they run.

    Attributes:
        namespace: of the Jobs.
        measure_image: measures; holds neither Prefect nor the Kubernetes client.
        controller_image: finishes (assembles, compares, publishes) on the node that serves.
        service_account: of the pods that ask, build and measure; they mount no token of it, but clouds give
            it access to the store. They run what models bring: its rights are for their prefixes alone.
        env_from_secrets: Secrets whose keys are those pods' environment: the store's credentials.
        finish_service_account: of the pods that finish, which write bundles too; "" is `service_account`.
        finish_env_from_secrets: Secrets of those pods; None is `env_from_secrets`.
        signing: what finishing pods alone mount to sign bundles with; None signs none.
        image_pull_policy: "" leaves it to Kubernetes.
        poll_s: seconds between two looks at a Job, on average.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    namespace: str = "default"
    measure_image: str
    controller_image: str
    service_account: str = "default"
    env_from_secrets: tuple[str, ...] = ()
    finish_service_account: str = ""
    finish_env_from_secrets: tuple[str, ...] | None = None
    signing: SigningSecret | None = None
    image_pull_policy: str = ""
    poll_s: float = Field(default=8.0, gt=0)


class ControllerSettings(CollageSettings):
    """The cluster's part of a controller's environment; `ControllerSettings.load()` reads it.

    Attributes:
        environments_file: describes the measuring environments (`collage.cluster.controller.environments`).
    """

    environments_file: Path = DEFAULT_FILE
    cluster: ClusterSettings
