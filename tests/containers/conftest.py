from tests.runtime.conftest import bundle

__all__ = ["bundle"]
