"""Fixtures of real servers. A test is skipped, with the reason, where this machine cannot run its server."""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

import pytest

from tests.servers.binaries import NotAsked, Unavailable


class Server(Protocol):
    """A server that runs until it is closed."""

    def close(self) -> None: ...


S = TypeVar("S", bound=Server)


@contextlib.contextmanager
def or_skip() -> Iterator[None]:
    """Skip the test where something is Unavailable; in CI it fails, since a skip is not seen there."""
    try:
        yield
    except NotAsked as reason:
        pytest.skip(str(reason))
    except Unavailable as reason:
        if os.environ.get("CI"):
            pytest.fail(f"skipped in CI: {reason}")
        pytest.skip(str(reason))


@contextlib.contextmanager
def running(start: Callable[..., S], *arguments: object) -> Iterator[S]:
    """Start a server, or skip the test; it is closed at the end."""
    with or_skip():
        server = start(*arguments)
    with contextlib.closing(server):
        yield server


@pytest.fixture(scope="package")
def plane(tmp_path_factory):
    """A Kubernetes control plane for the tests of the folder whose conftest.py imports this."""
    from tests.servers.control_plane import ControlPlane

    with running(ControlPlane, tmp_path_factory.mktemp("plane")) as created:
        yield created
