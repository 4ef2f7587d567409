"""Manifests as typed functions: a wrong field name is a TypeError here, not an ignored key there.

One form serves all Jobs: an Indexed Job whose indices fail alone (`backoffLimitPerIndex`). Its failure
policy, first match wins: a pod that was evicted or preempted costs no retry; exit 42 (bad input) fails
its index at once; exit 43 (this image or node cannot do it at all) fails the Job. `podReplacementPolicy`
Failed keeps two pods off one index. Pods are alone on their node, Guaranteed, and restricted.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from kubernetes.client import (
    V1Affinity,
    V1Capabilities,
    V1Container,
    V1EmptyDirVolumeSource,
    V1EnvFromSource,
    V1EnvVar,
    V1EnvVarSource,
    V1Job,
    V1JobSpec,
    V1KeyToPath,
    V1LabelSelector,
    V1NodeAffinity,
    V1NodeSelector,
    V1NodeSelectorRequirement,
    V1NodeSelectorTerm,
    V1ObjectFieldSelector,
    V1ObjectMeta,
    V1PodAffinityTerm,
    V1PodAntiAffinity,
    V1PodFailurePolicy,
    V1PodFailurePolicyOnExitCodesRequirement,
    V1PodFailurePolicyOnPodConditionsPattern,
    V1PodFailurePolicyRule,
    V1PodSpec,
    V1PodTemplateSpec,
    V1ResourceRequirements,
    V1SecretEnvSource,
    V1SecretVolumeSource,
    V1SecurityContext,
    V1Toleration,
    V1Volume,
    V1VolumeMount,
)

from collage.cluster.controller.environments import MeasuringEnvironment
from collage.cluster.controller.settings import ClusterSettings
from collage.cluster.exit_codes import BAD_INPUT, BAD_NODE
from collage.cluster.kubernetes.extra_parts import (
    ARCH_LABEL,
    extra_mounts,
    extra_variables,
    extra_volumes,
    security_context,
    without_hidden,
)
from collage.import_limits import VARIABLES
from collage.telemetry import TELEMETRY_OFF

CONTAINER = "measure"
RETRIES_PER_INDEX = 2
GRACE_S = 30
WRITABLE = "/tmp"
SIGNING_FOLDER, SIGNING_KEY = "/etc/collage-signing", "key.pem"
LABEL = "collage.dev"
COMPONENT_LABEL = "app.kubernetes.io/component"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
SHARING_LABEL = "nvidia.com/gpu.sharing-strategy"
SHARED = ("time-slicing", "mps")
"""MPS strategies under which another process disturbs measurements."""

MEASURING: Mapping[str, str] = MappingProxyType({f"{LABEL}/measure": "true"})
"""Label of every pod that may time kernels; such pods never share a node."""

BUILDING: Mapping[str, str] = MappingProxyType({f"{LABEL}/build": "true"})
"""Label of pods that only build: any number on a node, never beside a pod that times kernels."""


class Kind(StrEnum):
    """The kind of work of a Job."""

    PROBE = "probe"
    BUILD = "build"
    MEASURE = "measure"
    FINISH = "finish"


@dataclass(frozen=True)
class JobTask:
    """One Job to create, independent of its environment.

    Attributes:
        name: name of the Job, equal for equal work.
        labels: labels without the prefix `collage.dev/`; controllers find Jobs by them.
        notes: annotations without the prefix.
        arguments: arguments of the image's program.
        command: replacement of the image's entry point; empty keeps it.
        compiles: True for the controller's image, which has compilers.
        indices: number of completion indices.
        parallelism: largest number of simultaneous pods; None is the environment's.
    """

    kind: Kind
    name: str
    labels: Mapping[str, str]
    arguments: Sequence[str]
    notes: Mapping[str, str] = field(default_factory=dict)
    command: Sequence[str] = ()
    compiles: bool = False
    indices: int = 1
    parallelism: int | None = None


def job_manifest(
    task: JobTask, environment: MeasuringEnvironment, settings: ClusterSettings
) -> V1Job:
    """Return the manifest of a task's Job on the nodes of an environment."""
    if task.kind is Kind.BUILD:
        environment = environment.build_environment
    labels = _labels(task)
    queue = {QUEUE_LABEL: environment.queue_name} if environment.queue_name else {}
    template = V1PodTemplateSpec(
        metadata=V1ObjectMeta(
            labels={
                **settings.pod.labels,
                **labels,
                **(BUILDING if task.kind is Kind.BUILD else MEASURING),
            },
            annotations=dict(settings.pod.annotations) or None,
        ),
        spec=_pod(task, environment, settings),
    )
    spec = V1JobSpec(
        completion_mode="Indexed",
        completions=task.indices,
        parallelism=min(task.indices, task.parallelism or environment.parallelism),
        backoff_limit_per_index=RETRIES_PER_INDEX,
        active_deadline_seconds=environment.deadline_seconds + environment.queue_seconds,
        ttl_seconds_after_finished=environment.ttl_seconds,
        pod_replacement_policy="Failed",
        pod_failure_policy=_failure_policy(),
        template=template,
    )
    notes = {f"{LABEL}/{name}": value for name, value in sorted(task.notes.items())}
    metadata = V1ObjectMeta(name=task.name, labels={**labels, **queue}, annotations=notes or None)
    return V1Job(api_version="batch/v1", kind="Job", metadata=metadata, spec=spec)


def _labels(task: JobTask) -> dict[str, str]:
    own = {f"{LABEL}/{name}": value for name, value in sorted(task.labels.items())}
    return {
        "app.kubernetes.io/name": "collage",
        "app.kubernetes.io/part-of": "collage",
        "app.kubernetes.io/managed-by": "collage",
        COMPONENT_LABEL: task.kind.value,  # older clients keep an enum as it is
        **own,
    }


def _failure_policy() -> V1PodFailurePolicy:
    disrupted = V1PodFailurePolicyOnPodConditionsPattern(type="DisruptionTarget", status="True")
    return V1PodFailurePolicy(
        rules=[
            V1PodFailurePolicyRule(action="Ignore", on_pod_conditions=[disrupted]),
            _exit_rule("FailIndex", BAD_INPUT),
            _exit_rule("FailJob", BAD_NODE),
        ]
    )


def _exit_rule(action: str, code: int) -> V1PodFailurePolicyRule:
    codes = V1PodFailurePolicyOnExitCodesRequirement(
        container_name=CONTAINER, operator="In", values=[code]
    )
    return V1PodFailurePolicyRule(action=action, on_exit_codes=codes)


def _pod(task: JobTask, environment: MeasuringEnvironment, settings: ClusterSettings) -> V1PodSpec:
    return V1PodSpec(
        restart_policy="Never",  # the policies above need it
        active_deadline_seconds=environment.deadline_seconds,
        service_account_name=_account(task, settings),
        automount_service_account_token=False,
        enable_service_links=False,
        termination_grace_period_seconds=GRACE_S,
        priority_class_name=environment.priority_class_name or None,
        runtime_class_name=environment.runtime_class_name or None,
        node_selector=_node_selector(environment, settings),
        tolerations=[V1Toleration(**dict(toleration)) for toleration in environment.tolerations]
        or None,
        affinity=_affinity(environment),
        security_context=security_context(settings.pod),
        containers=[_container(task, environment, settings)],
        volumes=[
            V1Volume(
                name="scratch",
                empty_dir=V1EmptyDirVolumeSource(size_limit=environment.scratch_size),
            ),
            *_signing_volumes(task, settings),
            *extra_volumes(settings.pod),
        ],
    )


def _node_selector(
    environment: MeasuringEnvironment, settings: ClusterSettings
) -> dict[str, str] | None:
    """Return the labels of the environment's nodes; the images run on one architecture."""
    own = {ARCH_LABEL: settings.pod.arch} if settings.pod.arch else {}
    return {**own, **environment.node_selector} or None


def _account(task: JobTask, settings: ClusterSettings) -> str:
    finishes = task.kind is Kind.FINISH
    return (finishes and settings.finish_service_account) or settings.service_account


def _secrets(task: JobTask, settings: ClusterSettings) -> tuple[str, ...]:
    own = settings.finish_env_from_secrets
    return settings.env_from_secrets if task.kind is not Kind.FINISH or own is None else own


def _signing_volumes(task: JobTask, settings: ClusterSettings) -> list[V1Volume]:
    """Return the signing key for pods that publish; every other pod gets none."""
    if task.kind is not Kind.FINISH or settings.signing is None:
        return []
    key = V1KeyToPath(key=settings.signing.key, path=SIGNING_KEY)
    secret = V1SecretVolumeSource(
        secret_name=settings.signing.name, items=[key], default_mode=0o440
    )
    return [V1Volume(name="signing", secret=secret)]


def _container(
    task: JobTask, environment: MeasuringEnvironment, settings: ClusterSettings
) -> V1Container:
    secrets = [
        V1EnvFromSource(secret_ref=V1SecretEnvSource(name=name))
        for name in _secrets(task, settings)
    ]
    signing = _signing_volumes(task, settings)
    return V1Container(
        name=CONTAINER,
        image=settings.controller_image if task.compiles else settings.measure_image,
        image_pull_policy=settings.image_pull_policy or None,
        command=list(task.command) or None,
        args=list(task.arguments),
        env=_variables(task, environment, settings),
        env_from=secrets or None,
        resources=_resources(environment),
        security_context=V1SecurityContext(
            allow_privilege_escalation=False,
            read_only_root_filesystem=True,
            capabilities=V1Capabilities(drop=["ALL"]),
        ),
        volume_mounts=[
            V1VolumeMount(name="scratch", mount_path=WRITABLE),
            *(
                V1VolumeMount(name=secret.name, mount_path=SIGNING_FOLDER, read_only=True)
                for secret in signing
            ),
            *extra_mounts(settings.pod),
        ],
        termination_message_policy="FallbackToLogsOnError",
    )


def _variables(
    task: JobTask, environment: MeasuringEnvironment, settings: ClusterSettings
) -> list[V1EnvVar]:
    key = V1EnvVar(name="COLLAGE_SIGN_KEY", value=f"{SIGNING_FOLDER}/{SIGNING_KEY}")
    signing = [key] if _signing_volumes(task, settings) else []
    own = [*_environment_variables(environment), *signing]
    return without_hidden([*own, *extra_variables(settings.pod)])


def _environment_variables(environment: MeasuringEnvironment) -> list[V1EnvVar]:
    """Return the pod's variables; HOME and TMPDIR are on the volume, because the root is read-only.

    Import limits are those of the controller. NVIDIA's container runtime mounts the requested driver
    libraries: CUDA (compute) and NVML (utility).
    """
    plain = {"HOME": WRITABLE, "TMPDIR": WRITABLE, "XDG_CACHE_HOME": f"{WRITABLE}/.cache"}
    plain |= TELEMETRY_OFF
    if environment.gpu_resource:
        plain |= {"NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
    plain |= {name: os.environ[name] for name in sorted(VARIABLES) if name in os.environ}
    fields = {"COLLAGE_POD": "metadata.name", "COLLAGE_NODE": "spec.nodeName"}
    return [
        *(V1EnvVar(name=name, value=value) for name, value in plain.items()),
        *(
            V1EnvVar(
                name=name,
                value_from=V1EnvVarSource(field_ref=V1ObjectFieldSelector(field_path=path)),
            )
            for name, path in fields.items()
        ),
    ]


def _resources(environment: MeasuringEnvironment) -> V1ResourceRequirements:
    """Return requests equal to limits, in whole CPUs: the pod is Guaranteed and may get exclusive cores."""
    needed = {"cpu": str(environment.cpu), "memory": environment.memory}
    limits = dict(needed)
    if environment.gpu_resource:
        limits[environment.gpu_resource] = str(environment.gpu_count)
    return V1ResourceRequirements(requests=needed, limits=limits)


def _affinity(environment: MeasuringEnvironment) -> V1Affinity:
    """Return the affinity: one measuring pod on each node, over all namespaces, and no shared GPU.

    Anti-affinity is symmetric: no measuring pod comes to a node with building pods.
    """
    alone = V1PodAffinityTerm(
        topology_key="kubernetes.io/hostname",
        label_selector=V1LabelSelector(match_labels=dict(MEASURING)),
        namespace_selector=V1LabelSelector(),
    )
    node = None
    if environment.gpu_resource:
        unshared = V1NodeSelectorRequirement(
            key=SHARING_LABEL, operator="NotIn", values=list(SHARED)
        )
        node = V1NodeAffinity(
            required_during_scheduling_ignored_during_execution=V1NodeSelector(
                node_selector_terms=[V1NodeSelectorTerm(match_expressions=[unshared])]
            )
        )
    return V1Affinity(
        pod_anti_affinity=V1PodAntiAffinity(
            required_during_scheduling_ignored_during_execution=[alone]
        ),
        node_affinity=node,
    )
