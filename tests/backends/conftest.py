from tests.frontend.conftest import real_model

__all__ = ["real_model"]
