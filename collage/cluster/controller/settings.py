"""Settings of the controller for its cluster: COLLAGE_CLUSTER__NAMESPACE and so on."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from collage.cluster.controller.environments import DEFAULT_FILE
from collage.cluster.controller.pod_settings import PodSettings
from collage.settings import CollageSettings


class SigningSecret(BaseModel):
    """The name of a Secret and the key in it of the private key (Ed25519, PEM)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    key: str = "key.pem"


class ClusterSettings(BaseModel):
    """Namespace, images and accounts of Jobs.

    Attributes:
        namespace: namespace of the Jobs.
        measure_image: image of measuring pods, without Prefect and the Kubernetes client.
        controller_image: image of building and finish pods (assemble, compare, publish), with compilers.
        service_account: account of probe, build and measuring pods. They mount no token of it, but clouds
            grant it access to the store. They run code from models: its rights cover their prefixes alone.
        env_from_secrets: Secrets with the environment variables of those pods: the store's credentials.
        finish_service_account: account of finish pods, with the right to write bundles; "" is
            `service_account`.
        finish_env_from_secrets: Secrets of finish pods; None is `env_from_secrets`.
        signing: Secret with the signing key, mounted by finish pods alone; None signs no bundle.
        image_pull_policy: pull policy of the images; "" is the default of Kubernetes.
        pod: additions of the operator to every pod, as JSON.
        poll_s: mean pause between two polls of a Job, in seconds.
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
    pod: PodSettings = PodSettings()
    poll_s: float = Field(default=8.0, gt=0)


class ControllerSettings(CollageSettings):
    """The cluster settings in a controller's environment variables; `ControllerSettings.load()` reads them.

    Attributes:
        environments_file: file of the measuring environments (`collage.cluster.controller.environments`).
    """

    environments_file: Path = DEFAULT_FILE
    cluster: ClusterSettings
