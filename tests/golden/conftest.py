"""The example model, imported once for all golden tests."""

import pytest

from collage.frontend import import_model
from tests.support.golden_inputs import example_model


@pytest.fixture(scope="session")
def example(tmp_path_factory):
    """The example's only function."""
    folder = tmp_path_factory.mktemp("example")
    return import_model(example_model(folder / "model.onnx"), work_dir=folder / "work").functions[0]
