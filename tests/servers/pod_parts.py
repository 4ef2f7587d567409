"""Command, environment and volumes of a container, as a kubelet resolves them."""

import base64
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from kubernetes import client

TOKEN_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"


class ConfigError(Exception):
    """A Secret, ConfigMap or key that is not there."""


class Parts:
    """The parts of one pod; volumes are folders under `folder`/volumes."""

    def __init__(self, core: client.CoreV1Api, pod: client.V1Pod, folder: Path, plane) -> None:
        self._core, self._pod, self._plane = core, pod, plane
        self._folder = folder
        self._namespace = pod.metadata.namespace
        folder.mkdir(parents=True, exist_ok=True)
        self._volumes = {volume.name: self._volume(volume) for volume in pod.spec.volumes or ()}

    def of(
        self, container: client.V1Container, entry_point: Sequence[str]
    ) -> tuple[list[str], dict[str, str]]:
        """Return the command line and the environment. Raises ConfigError."""
        mounts = {
            mount.mount_path.rstrip("/"): self._volumes[mount.name] / (mount.sub_path or "")
            for mount in container.volume_mounts or ()
        }
        values = self._environment(container)

        def expand(text: str) -> str:
            text = re.sub(r"\$\(([\w.-]+)\)", lambda m: values.get(m[1], m[0]), text)
            for mount, place in sorted(mounts.items(), reverse=True):
                text = re.sub(rf"(?<![\w./-]){re.escape(mount)}(?=/|$|[:,;\s])", str(place), text)
            return text

        environment = {name: expand(value) for name, value in values.items()}
        if TOKEN_FOLDER in mounts:
            environment["KUBECONFIG"] = self._kubeconfig()
        # The image's own entry point is a path of this machine, which may lie where the pod mounts something.
        command = map(expand, container.command) if container.command else entry_point
        return [*command, *map(expand, container.args or ())], environment

    def _environment(self, container: client.V1Container) -> dict[str, str]:
        values: dict[str, str] = {}
        for source in container.env_from or ():
            for kind, reference in (
                ("secret", source.secret_ref),
                ("configmap", source.config_map_ref),
            ):
                if reference:
                    actual = self._data(kind, reference.name, reference.optional)
                    prefix = source.prefix or ""
                    values |= {f"{prefix}{key}": data.decode() for key, data in actual.items()}
        for variable in container.env or ():
            value = (
                variable.value or ""
                if variable.value_from is None
                else self._from(variable.value_from)
            )
            if value is not None:
                values[variable.name] = re.sub(
                    r"\$\(([\w.-]+)\)", lambda m: values.get(m[1], m[0]), value
                )
        return values

    def _from(self, source: client.V1EnvVarSource) -> str | None:
        if source.field_ref:
            return self._field(source.field_ref.field_path)
        for kind, reference in (
            ("secret", source.secret_key_ref),
            ("configmap", source.config_map_key_ref),
        ):
            if reference:
                data = self._data(kind, reference.name, reference.optional)
                if reference.key in data:
                    return data[reference.key].decode()
                if reference.optional:
                    return None
                raise ConfigError(f"couldn't find key {reference.key} in {kind} {reference.name}")
        raise ConfigError("this source of a variable is not played")

    def _field(self, path: str) -> str:
        keyed = re.fullmatch(r"metadata\.(annotations|labels)\['(.+)'\]", path)
        if keyed:
            return (getattr(self._pod.metadata, keyed[1]) or {}).get(keyed[2], "")
        simple = {
            "metadata.name": self._pod.metadata.name,
            "metadata.namespace": self._namespace,
            "metadata.uid": self._pod.metadata.uid,
            "spec.nodeName": self._pod.spec.node_name,
            "spec.serviceAccountName": self._pod.spec.service_account_name,
            "status.podIP": "127.0.0.1",
            "status.hostIP": "127.0.0.1",
        }
        return simple[path]

    def _data(self, kind: str, name: str, optional: bool | None = False) -> dict[str, bytes]:
        try:
            if kind == "secret":
                secret = self._core.read_namespaced_secret(name, self._namespace)
                return {key: base64.b64decode(text) for key, text in (secret.data or {}).items()}
            actual = self._core.read_namespaced_config_map(name, self._namespace)
            return {key: text.encode() for key, text in (actual.data or {}).items()}
        except client.ApiException as error:
            if error.status != 404:
                raise
            if optional:
                return {}
            raise ConfigError(f'{kind} "{name}" not found') from error

    def _volume(self, volume: client.V1Volume) -> Path:
        place = self._folder / "volumes" / volume.name
        place.mkdir(parents=True, exist_ok=True)
        if volume.secret:
            data = self._data("secret", volume.secret.secret_name, volume.secret.optional)
            self._write(place, data, volume.secret.items)
        if volume.config_map:
            data = self._data("configmap", volume.config_map.name, volume.config_map.optional)
            self._write(place, data, volume.config_map.items)
        for source in (volume.projected.sources or ()) if volume.projected else ():
            if source.secret:
                data = self._data("secret", source.secret.name, source.secret.optional)
                self._write(place, data, source.secret.items)
            if source.config_map and source.config_map.name != "kube-root-ca.crt":
                data = self._data("configmap", source.config_map.name, source.config_map.optional)
                self._write(place, data, source.config_map.items)
            if source.downward_api:
                self._write_fields(place, source.downward_api.items)
        if volume.downward_api:
            self._write_fields(place, volume.downward_api.items)
        return place

    def _write(
        self, place: Path, data: Mapping[str, bytes], items: Sequence[client.V1KeyToPath] | None
    ) -> None:
        expected = {pair.key: pair.path for pair in items} if items else {key: key for key in data}
        for key, path in expected.items():
            if key not in data:
                raise ConfigError(f"references non-existent key: {key}")
            file = place / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data[key])

    def _write_fields(self, place: Path, items: Sequence[client.V1DownwardAPIVolumeFile]) -> None:
        for pair in items or ():
            if pair.field_ref:
                (place / pair.path).write_text(self._field(pair.field_ref.field_path))

    def _kubeconfig(self) -> str:
        account = self._pod.spec.service_account_name or "default"
        token = self._plane.account_token(self._namespace, account)
        file = self._folder / "kubeconfig"
        return str(self._plane.kubeconfig(file, token, self._namespace))
