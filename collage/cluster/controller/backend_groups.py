"""Which candidates of a batch share a Job: those of one group of backends.

A Job is the unit that Kubernetes fails, queues and names: a library that is not what the controller has
fails the Job of its group and no other. But every Job starts pods, and costs of one region are best
compared within one pod, where a hopeless candidate is given up early. So a group has a Job of its own
only where its expected work is worth the pods; the others share one. All Jobs of a batch together have
the environment's pods. Both are functions of the batch alone: equal batches give equal Jobs. O(n log n).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from collage.cluster.shards import Wanted


@dataclass(frozen=True)
class Share:
    """What one Job works on.

    Attributes:
        groups: their names.
        parallelism: pods that it may have at once.
    """

    groups: tuple[str, ...]
    wanted: Sequence[Wanted]
    parallelism: int


def named_groups(
    declared: Mapping[str, str], settings: Mapping[str, Sequence[str]]
) -> dict[str, str]:
    """Return the group of each backend: what the settings say, else what it declares."""
    given = {backend: group for group, backends in settings.items() for backend in backends}
    return {backend: given.get(backend, group) for backend, group in declared.items()}


def split_groups(
    wanted: Sequence[Wanted],
    groups: Mapping[str, str],
    seconds: Callable[[str], float],
    least_s: float,
    parallelism: int,
) -> list[Share]:
    """Divide candidates, and the pods for them, among Jobs; the largest comes first.

    Args:
        wanted: at least one.
        groups: of the backends.
        seconds: that a candidate of a backend is expected to take.
        least_s: expected work that is worth a Job of its own.
        parallelism: pods at once of all Jobs together; there are never more Jobs.
    """
    found: dict[str, list[Wanted]] = {}
    for one in wanted:
        found.setdefault(groups[one.work.backend], []).append(one)
    total_s = {name: sum(seconds(one.work.backend) for one in part) for name, part in found.items()}
    order = sorted(found, key=lambda name: (-total_s[name], name))
    large = [name for name in order if total_s[name] >= least_s]
    jobs = [[name] for name in large[:parallelism]] or [[]]
    jobs[-1] += [name for name in order if not any(name in job for job in jobs)]
    pods = _divided([sum(total_s[name] for name in job) for job in jobs], parallelism)
    return [
        Share(tuple(sorted(job)), [one for name in job for one in found[name]], count)
        for job, count in zip(jobs, pods, strict=True)
    ]


def _divided(weights: Sequence[float], count: int) -> list[int]:
    """Divide `count` pods by weight, one for everybody at least; ties go to the first."""
    given = [1] * len(weights)
    for _ in range(count - len(weights)):
        needs = [weight / have for weight, have in zip(weights, given, strict=True)]
        given[needs.index(max(needs))] += 1
    return given
