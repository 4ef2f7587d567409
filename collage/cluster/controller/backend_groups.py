"""Division of a batch among Jobs: candidates whose backends are of one group share a Job.

A Job is the unit that Kubernetes fails, queues and names: a library in another version fails the Job of its
group and no other. But every Job starts pods, and costs of one region compare best within one pod, where a
candidate that is far too slow is given up early. So a group has a Job of its own only if its expected work
is worth the pods; the remaining groups share one. All Jobs of a batch together get the environment's pods.
The division depends on the batch alone: equal batches give equal Jobs. O(n log n).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from collage.cluster.shards import KeyedRequest


@dataclass(frozen=True)
class JobShare:
    """The part of a batch that one Job works on.

    Attributes:
        groups: names of the backend groups.
        candidates: measurement requests, with their cost keys.
        parallelism: largest number of simultaneous pods.
    """

    groups: tuple[str, ...]
    candidates: Sequence[KeyedRequest]
    parallelism: int


def named_groups(
    declared: Mapping[str, str], settings: Mapping[str, Sequence[str]]
) -> dict[str, str]:
    """Return the group of each backend: from the settings, else the declared one."""
    configured = {backend: group for group, backends in settings.items() for backend in backends}
    return {backend: configured.get(backend, group) for backend, group in declared.items()}


def split_groups(
    candidates: Sequence[KeyedRequest],
    groups: Mapping[str, str],
    seconds: Callable[[str], float],
    *,
    min_job_s: float,
    parallelism: int,
) -> list[JobShare]:
    """Divide candidates, and the pods for them, among Jobs; the largest comes first.

    Args:
        candidates: measurement requests, one or more.
        groups: group of each backend, by the backend's name.
        seconds: expected duration of one candidate, in seconds, by the backend's name.
        min_job_s: least expected work for a Job of its own, in seconds.
        parallelism: simultaneous pods of all Jobs together; also the largest number of Jobs.
    """
    by_group: dict[str, list[KeyedRequest]] = {}
    for candidate in candidates:
        by_group.setdefault(groups[candidate.work.backend], []).append(candidate)
    total_s = {
        name: sum(seconds(candidate.work.backend) for candidate in members)
        for name, members in by_group.items()
    }
    order = sorted(by_group, key=lambda name: (-total_s[name], name))
    large = [name for name in order if total_s[name] >= min_job_s]
    jobs = [[name] for name in large[:parallelism]] or [[]]
    jobs[-1] += [name for name in order if not any(name in job for job in jobs)]
    pods = _divide_pods([sum(total_s[name] for name in job) for job in jobs], parallelism)
    return [
        JobShare(
            tuple(sorted(job)), [member for name in job for member in by_group[name]], pod_count
        )
        for job, pod_count in zip(jobs, pods, strict=True)
    ]


def _divide_pods(weights: Sequence[float], count: int) -> list[int]:
    """Divide `count` pods by weight, at least one for each; ties go to the first."""
    pods = [1] * len(weights)
    for _ in range(count - len(weights)):
        loads = [weight / assigned for weight, assigned in zip(weights, pods, strict=True)]
        pods[loads.index(max(loads))] += 1
    return pods
