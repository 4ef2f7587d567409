import pytest

from collage.cluster.controller.settings import ControllerSettings
from collage.errors import OptionError

GIVEN = {
    "COLLAGE_CLUSTER__NAMESPACE": "ml",
    "COLLAGE_CLUSTER__MEASURE_IMAGE": "m:1",
    "COLLAGE_CLUSTER__CONTROLLER_IMAGE": "c:1",
    "COLLAGE_CLUSTER__SERVICE_ACCOUNT": "measure",
    "COLLAGE_CLUSTER__ENV_FROM_SECRETS": '["store"]',
    "COLLAGE_ENVIRONMENTS_FILE": "/etc/e.yaml",
}


@pytest.fixture
def variables(monkeypatch):
    for name, value in GIVEN.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def test_settings_come_from_the_environment(variables):
    settings = ControllerSettings.load()
    assert settings.cluster.namespace == "ml"
    assert settings.cluster.env_from_secrets == ("store",)
    assert str(settings.environments_file) == "/etc/e.yaml"


@pytest.mark.parametrize(
    "name", ["COLLAGE_CLUSTER__NAMESPAC", "COLLAGE_ENVIRONMENT_FILE", "COLLAGE_CLUSTER__POLL_S"]
)
def test_a_typo_or_a_wrong_value_is_an_error(variables, name):
    variables.setenv(name, "-1")
    with pytest.raises(OptionError, match=name):
        ControllerSettings.load()
