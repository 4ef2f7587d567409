import pytest

from tests.e2e.places import Played, Real
from tests.servers.fixtures import plane, running

__all__ = ["plane"]


@pytest.fixture(scope="package")
def real(plane, tmp_path_factory):
    """The real node with the real images; `make e2e` starts it."""
    with running(Real, plane, tmp_path_factory.mktemp("images")) as created:
        yield created


@pytest.fixture(scope="module", params=["played", "kubelet"])
def place(request, plane, tmp_path_factory):
    """Played nodes come first and go: pods of the real node's tests cannot land on them."""
    if request.param == "kubelet":
        yield request.getfixturevalue("real")
        return
    with running(Played, plane, tmp_path_factory.mktemp("nodes")) as created:
        yield created
