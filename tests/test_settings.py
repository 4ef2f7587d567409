"""Settings from the environment: unknown names are refused with a near one, values are never shown."""

import pytest
from pydantic import SecretStr

from collage.errors import OptionError
from collage.settings import CollageSettings, unknown_variables
from containers.receiver_settings import ReceiverSettings


class Sample(CollageSettings):
    store: str
    secret: SecretStr | None = None
    slots: int = 1


@pytest.fixture
def environment(monkeypatch):
    import os

    for name in [name for name in os.environ if name.startswith("COLLAGE_")]:
        monkeypatch.delenv(name)

    def set_all(**values):
        for name, value in values.items():
            monkeypatch.setenv(f"COLLAGE_{name}", value)

    return set_all


def test_what_is_given_is_read_and_frozen(environment):
    environment(STORE="s3://b", SLOTS="3")
    settings = Sample.load()
    assert (settings.store, settings.slots) == ("s3://b", 3)
    with pytest.raises(ValueError, match="frozen"):
        settings.slots = 4


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "COLLAGE_STORE: Field required"),
        ({"STORE": "s3://b", "SLOTS": "many"}, "COLLAGE_SLOTS: Input should be a valid integer"),
        ({"STORE": "s3://b", "SLOT": "3"}, r"COLLAGE_SLOT \(did you mean COLLAGE_SLOTS\?\)"),
        ({"STORE": "s3://b", "NONSENSE_AT_ALL": "3"}, "unknown settings: COLLAGE_NONSENSE_AT_ALL"),
    ],
)
def test_what_is_wrong_is_named(environment, values, message):
    environment(**values)
    with pytest.raises(OptionError, match=message):
        Sample.load()


@pytest.mark.parametrize(
    "name",
    [
        "GPU_SHARING",
        "LIB_OPENVINO",
        "WORKER_ENV",
        "IMPORT_MEMORY",
        "RECEIVER__SECRET",
        "METRICS__PORT",
        "ONEDNN_VERBOSE",
    ],
)
def test_variables_of_other_parts_are_accepted(environment, name):
    environment(STORE="s3://b", **{name: "x"})
    assert Sample.load().store == "s3://b"


@pytest.mark.parametrize(
    "name", ["GPU_SHARNG", "LIBS_OPENVINO", "IMPORT_MEMROY", "RECEIVER_SECRET"]
)
def test_misspelt_variables_of_other_parts_are_refused(environment, name):
    environment(STORE="s3://b", **{name: "x"})
    with pytest.raises(OptionError, match=f"COLLAGE_{name}"):
        Sample.load()


def test_the_receiver_knows_its_own_variables(environment):
    environment(
        RECEIVER__SECRET="a" * 20, RECEIVER__SECRTE="b", RECEIVER__PREFECT_API_URL="http://p"
    )
    with pytest.raises(OptionError, match=r"COLLAGE_RECEIVER__SECRTE \(did you mean"):
        ReceiverSettings.load()


def test_a_value_is_never_shown(environment):
    environment(STORE="s3://b", SLOTS="hunter2hunter2")
    with pytest.raises(OptionError) as error:
        Sample.load()
    assert "hunter2" not in str(error.value)


def test_variables_of_kubernetes_services_are_left_alone():
    names = ("COLLAGE_RECEIVER_SERVICE_HOST", "COLLAGE_RECEIVER_PORT_80_TCP_ADDR", "COLLAGE_STORE")
    assert unknown_variables([Sample], dict.fromkeys(names, "x")) == []
    assert unknown_variables([Sample], {"COLLAGE_STOER": "x"}) == [
        "COLLAGE_STOER (did you mean COLLAGE_STORE?)"
    ]
