from tests.servers.fixtures import plane

__all__ = ["plane"]
