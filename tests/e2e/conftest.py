import pytest

from tests.cluster.conftest import plane
from tests.e2e.places import Played, Real
from tests.servers.binaries import Unavailable

__all__ = ["plane"]


@pytest.fixture(scope="session")
def real(plane, tmp_path_factory):
    """The real node with the real images; `make e2e` starts it."""
    try:
        made = Real(plane, tmp_path_factory.mktemp("images"))
    except Unavailable as reason:
        pytest.skip(str(reason))
    yield made
    made.close()


@pytest.fixture(scope="module", params=["played", "kubelet"])
def place(request, plane, tmp_path_factory):
    """Played nodes come first and go: pods of the real node's tests cannot land on them."""
    if request.param == "kubelet":
        yield request.getfixturevalue("real")
        return
    made = Played(plane, tmp_path_factory.mktemp("nodes"))
    yield made
    made.close()
