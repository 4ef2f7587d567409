"""What operators add to pods (`PodSettings`), as objects of the Kubernetes client."""

from collections.abc import Iterable, Iterator, Sequence

from kubernetes.client import (
    V1ConfigMapKeySelector,
    V1ConfigMapVolumeSource,
    V1EmptyDirVolumeSource,
    V1EnvVar,
    V1EnvVarSource,
    V1KeyToPath,
    V1ObjectFieldSelector,
    V1PersistentVolumeClaimVolumeSource,
    V1PodSecurityContext,
    V1ResourceFieldSelector,
    V1SeccompProfile,
    V1SecretKeySelector,
    V1SecretVolumeSource,
    V1Volume,
    V1VolumeMount,
)

from collage.cluster.controller.pod_settings import (
    ConfigMapSource,
    ExtraVolume,
    KeyPath,
    PodSettings,
    SecretSource,
    Variable,
    VariableSource,
)

CA_FOLDER, CA_FILE = "/etc/collage-ca", "ca.crt"
CA_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "AWS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""Variables by which OpenSSL, requests, boto3 and libcurl find trusted authorities."""

_CA_VOLUME = "ca-bundle"
ARCH_LABEL = "kubernetes.io/arch"


def extra_variables(pod: PodSettings) -> Iterator[V1EnvVar]:
    """Yield the operator's variables, after those of the trusted authorities."""
    if pod.ca_bundle:
        for name in CA_VARIABLES:
            yield V1EnvVar(name=name, value=f"{CA_FOLDER}/{CA_FILE}")
    yield from map(_variable, pod.env)


def without_hidden(variables: Iterable[V1EnvVar]) -> list[V1EnvVar]:
    """Return the last variable of each name, which counts; a server-side apply refuses two."""
    last: dict[str, V1EnvVar] = {}
    for variable in variables:
        last.pop(variable.name, None)
        last[variable.name] = variable
    return list(last.values())


def extra_volumes(pod: PodSettings) -> Iterator[V1Volume]:
    """Yield the operator's volumes."""
    if pod.ca_bundle:
        file = V1KeyToPath(key=pod.ca_bundle.key, path=CA_FILE)
        source = V1ConfigMapVolumeSource(name=pod.ca_bundle.config_map, items=[file])
        yield V1Volume(name=_CA_VOLUME, config_map=source)
    yield from map(_volume, pod.volumes)


def extra_mounts(pod: PodSettings) -> Iterator[V1VolumeMount]:
    """Yield the mounts of those volumes."""
    if pod.ca_bundle:
        yield V1VolumeMount(name=_CA_VOLUME, mount_path=CA_FOLDER, read_only=True)
    for mount in pod.volume_mounts:
        yield V1VolumeMount(
            name=mount.name,
            mount_path=mount.mount_path,
            sub_path=mount.sub_path,
            read_only=mount.read_only,
        )


def security_context(pod: PodSettings) -> V1PodSecurityContext:
    """Return the context of a pod that is never root; ids that are None are the cluster's to choose."""
    return V1PodSecurityContext(
        run_as_non_root=True,
        run_as_user=pod.run_as_user,
        run_as_group=pod.run_as_group,
        fs_group=pod.fs_group,
        seccomp_profile=V1SeccompProfile(type="RuntimeDefault"),
    )


def _variable(variable: Variable) -> V1EnvVar:
    source = _source(variable.value_from) if variable.value_from else None
    return V1EnvVar(name=variable.name, value=variable.value, value_from=source)


def _source(source: VariableSource) -> V1EnvVarSource:
    secret, key = source.secret_key_ref, source.config_map_key_ref
    field, resource = source.field_ref, source.resource_field_ref
    return V1EnvVarSource(
        secret_key_ref=V1SecretKeySelector(**secret.model_dump()) if secret else None,
        config_map_key_ref=V1ConfigMapKeySelector(**key.model_dump()) if key else None,
        field_ref=V1ObjectFieldSelector(**field.model_dump()) if field else None,
        resource_field_ref=V1ResourceFieldSelector(**resource.model_dump()) if resource else None,
    )


def _volume(volume: ExtraVolume) -> V1Volume:
    claim, empty = volume.persistent_volume_claim, volume.empty_dir
    return V1Volume(
        name=volume.name,
        config_map=_config_map(volume.config_map) if volume.config_map else None,
        secret=_secret(volume.secret) if volume.secret else None,
        persistent_volume_claim=(
            V1PersistentVolumeClaimVolumeSource(**claim.model_dump()) if claim else None
        ),
        empty_dir=V1EmptyDirVolumeSource(**empty.model_dump()) if empty else None,
    )


def _config_map(files: ConfigMapSource) -> V1ConfigMapVolumeSource:
    return V1ConfigMapVolumeSource(
        name=files.name, items=_items(files.items), optional=files.optional
    )


def _secret(secret: SecretSource) -> V1SecretVolumeSource:
    return V1SecretVolumeSource(
        secret_name=secret.secret_name, items=_items(secret.items), optional=secret.optional
    )


def _items(items: Sequence[KeyPath]) -> list[V1KeyToPath] | None:
    return [V1KeyToPath(key=item.key, path=item.path) for item in items] or None
