"""What operators add to the pods of all Jobs: the values of the chart that its own pods get too.

    {"env": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
     "caBundle": {"configMap": "company-ca", "key": "ca.crt"}, "runAsUser": null}

A pod of a Job runs what models bring, so its volumes are of four kinds, none of them a path of the node, and
its Secrets are those of the admission policy. Names are those of Kubernetes; an unknown one is an error. A
variable that Collage sets itself may be set again: the last one counts.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from collage.cluster.controller.environments import Entry

NOBODY = 65532
"""User and group of the images."""

JOB_LABELS: Mapping[str, str] = MappingProxyType({"sidecar.istio.io/inject": "false"})
JOB_ANNOTATIONS: Mapping[str, str] = MappingProxyType(
    {
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
        "karpenter.sh/do-not-disrupt": "true",
        "linkerd.io/inject": "disabled",
        "sidecar.istio.io/inject": "false",
    }
)
"""Defaults: autoscalers leave a measuring node alone, and no mesh adds a sidecar, which would not end."""

_RESERVED = ("collage.dev/", "app.kubernetes.io/", "batch.kubernetes.io/", "kueue.x-k8s.io/")


def _unreserved(names: Mapping[str, str]) -> Mapping[str, str]:
    if reserved := sorted(name for name in names if name.startswith(_RESERVED)):
        raise ValueError(f"{', '.join(reserved)} cannot be set: Collage finds its Jobs by it")
    return names


Names = Annotated[Mapping[str, str], AfterValidator(_unreserved)]
"""Labels or annotations."""


class _Alternatives(Entry):
    """An entry whose fields exclude each other, apart from `name`."""

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        choices = sorted(set(type(self).model_fields) - {"name"})
        if sum(getattr(self, choice) is not None for choice in choices) > 1:
            raise ValueError(f"only one of {', '.join(choices)} can be given")
        return self


class KeyReference(Entry):
    """A key of a Secret or ConfigMap."""

    name: str
    key: str
    optional: bool | None = None


class FieldReference(Entry):
    """A field of the pod."""

    field_path: str
    api_version: str | None = None


class ResourceReference(Entry):
    """A request or limit of a container."""

    resource: str
    container_name: str | None = None
    divisor: str | None = None


class VariableSource(_Alternatives):
    """Where the value of a variable comes from."""

    secret_key_ref: KeyReference | None = None
    config_map_key_ref: KeyReference | None = None
    field_ref: FieldReference | None = None
    resource_field_ref: ResourceReference | None = None


class Variable(_Alternatives):
    """An environment variable."""

    name: str
    value: str | None = None
    value_from: VariableSource | None = None


class KeyPath(Entry):
    """A key of a Secret or ConfigMap and its file in the volume."""

    key: str
    path: str


class ConfigMapSource(Entry):
    """A ConfigMap as a volume."""

    name: str
    items: tuple[KeyPath, ...] = ()
    optional: bool | None = None


class SecretSource(Entry):
    """A Secret as a volume."""

    secret_name: str
    items: tuple[KeyPath, ...] = ()
    optional: bool | None = None


class ClaimSource(Entry):
    """A claim of a persistent volume."""

    claim_name: str
    read_only: bool | None = None


class EmptySource(Entry):
    """A folder that is empty at first."""

    size_limit: str
    medium: str | None = None


class ExtraVolume(_Alternatives):
    """A volume of an allowed kind."""

    name: str
    config_map: ConfigMapSource | None = None
    secret: SecretSource | None = None
    persistent_volume_claim: ClaimSource | None = None
    empty_dir: EmptySource | None = None


class ExtraMount(Entry):
    """The place of a volume in the container."""

    name: str
    mount_path: str
    sub_path: str | None = None
    read_only: bool | None = None


class CaBundle(Entry):
    """A ConfigMap with the certificates (PEM) of all trusted authorities."""

    config_map: str
    key: str = "ca.crt"


class PodSettings(Entry):
    """Additions to every pod of a Job.

    Attributes:
        env: variables of the container.
        volumes: volumes beside Collage's own.
        volume_mounts: mounts of those volumes.
        ca_bundle: trusted authorities; None leaves those of the image.
        labels: labels beside Collage's own.
        annotations: annotations of the pods.
        run_as_user: user id; None leaves it to the cluster or the image, which must not be root.
        run_as_group: group id; None likewise.
        fs_group: group of the volumes; None likewise.
        arch: processor architecture of the images, as nodes are labelled (`amd64`); "" is any.
    """

    env: tuple[Variable, ...] = ()
    volumes: tuple[ExtraVolume, ...] = ()
    volume_mounts: tuple[ExtraMount, ...] = ()
    ca_bundle: CaBundle | None = None
    labels: Names = Field(default_factory=lambda: dict(JOB_LABELS))
    annotations: Names = Field(default_factory=lambda: dict(JOB_ANNOTATIONS))
    run_as_user: int | None = Field(default=NOBODY, ge=1)
    run_as_group: int | None = Field(default=NOBODY, ge=0)
    fs_group: int | None = Field(default=NOBODY, ge=0)
    arch: str = ""
