"""Ports for servers of the tests."""

import random
import socket

LOWEST, HIGHEST = 20_000, 32_767
"""Below those that Linux gives to connections: one of these could have the port before the server has it."""


def free_ports(count: int) -> list[int]:
    """Return free ports, all different; random, for several test runs may look at the same time."""
    actual: set[int] = set()
    while len(actual) < count:
        port = random.SystemRandom().randint(LOWEST, HIGHEST)
        if port not in actual and _is_free(port):
            actual.add(port)
    return list(actual)


def free_port() -> int:
    """Return one of `free_ports`."""
    return free_ports(1)[0]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
