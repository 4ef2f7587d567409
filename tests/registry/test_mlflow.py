"""MLflow: flavours, webhooks that reach the real receiver, and a server that is not there."""

import os
import subprocess
import sys
import time

import onnx
import pytest

from collage.errors import ModelError, OptionError, RegistryError
from collage.registry import VersionStatus, open_registry
from tests.registry.conftest import make_model
from tests.servers.receiver import SECRET, PrefectRecorder, Receiver
from tests.support.waiting import wait_for


def test_what_the_client_logs_by_itself(mlflow_user, name, tmp_path):
    import mlflow
    import mlflow.onnx

    with mlflow.start_run():
        mlflow.onnx.log_model(make_model(), name="model", registered_model_name=name)
    file = mlflow_user.registry.download(mlflow_user.registry.find(name, "1"), tmp_path)
    onnx.checker.check_model(str(file))


DESCRIPTIONS = {
    "another flavour": ("flavors: {python_function: {}, sklearn: {}}", "flavours are python_f"),
    "no YAML": ("{", "damaged"),
    "no flavours": ("a: 1", "damaged"),
    "leads out": ("flavors: {onnx: {data: ../../x}}", "lacks its file"),
    "lacks the file": ("flavors: {onnx: {data: model.onnx}}", "lacks its file"),
    "none": (None, "no file MLmodel"),
}  # fmt: skip


@pytest.mark.parametrize("case", DESCRIPTIONS)
def test_versions_that_hold_no_onnx_model_say_why(mlflow_user, name, tmp_path, case):
    text, reason = DESCRIPTIONS[case]
    folder = tmp_path / "logged"
    folder.mkdir()
    (folder / "big.bin").write_bytes(b"x" * 100)
    if text is not None:
        (folder / "MLmodel").write_text(text)
    version = mlflow_user.add_folder(name, folder)
    (tmp_path / "copy").mkdir()
    with pytest.raises(ModelError, match=reason) as error:
        mlflow_user.registry.download(version, tmp_path / "copy")
    mlflow_user.registry.record_status(version, VersionStatus("failed", reason=str(error.value)))
    tags = mlflow_user.client.get_model_version(name, version.version).tags
    assert tags["collage.status"] == "failed"
    assert reason in tags["collage.reason"]


def test_a_server_that_is_not_there_is_said_within_seconds():
    begin = time.monotonic()
    with pytest.raises(RegistryError, match=r"MLflow server http://127.0.0.1:1 did not find .*'m'"):
        open_registry("mlflow+http://127.0.0.1:1").find("m")
    assert time.monotonic() - begin < 30


@pytest.mark.parametrize(
    "address", ["mlflow+http://", "mlflow+http://user:word@host", "mlflow://host", "ftp://bucket"]
)
def test_addresses_that_make_no_sense(address, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(OptionError) as error:
        open_registry(address)
    assert "word" not in str(error.value)


def test_the_environment_names_the_server(mlflow_site, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_site.url)
    assert open_registry("mlflow://").url == mlflow_site.address


def test_opening_a_folder_imports_no_mlflow(tmp_path):
    program = (
        "import sys; from collage.registry import open_registry; open_registry(sys.argv[1]);"
        "assert not {'mlflow', 'boto3'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, env=os.environ)


@pytest.fixture
def site(mlflow_user, tmp_path):
    """MLflow with a webhook to a receiver process, and what Prefect was asked."""
    prefect = PrefectRecorder()
    receiver = Receiver(tmp_path, prefect.url)
    hooks = [
        mlflow_user.client.create_webhook(
            f"hook-{number}", f"{receiver.url}/webhooks/mlflow", [event], secret=SECRET
        )
        for number, event in enumerate(
            ["model_version_alias.created", "model_version_tag.set", "model_version.created"]
        )
    ]
    time.sleep(1.1)  # the server remembers for a second which webhooks there are
    yield receiver, prefect, hooks
    for hook in hooks:
        mlflow_user.client.delete_webhook(hook.webhook_id)
    receiver.kill()
    prefect.close()


def test_the_alias_in_mlflow_starts_one_run_and_own_writes_none(mlflow_user, site, name):
    receiver, prefect, _ = site
    version = mlflow_user.add(name)
    wait_for(lambda: receiver.count("webhooks", "ignored") == 1)  # model_version.created
    mlflow_user.set_alias(version)
    wait_for(lambda: receiver.count("starts", "started") == 1)
    assert prefect.runs[0]["parameters"] == {"model": name, "version": version.version}
    mlflow_user.registry.record_status(
        version, VersionStatus("optimized", bundle="ab", speedup=2.0)
    )
    mlflow_user.registry.accept(version)
    wait_for(lambda: receiver.count("webhooks", "ignored") == 5)  # three tags and the alias
    assert receiver.count("starts", "started") == len(prefect.runs) == 1
    assert receiver.count("webhooks", "forged") == 0


def test_mlflows_own_test_of_a_webhook(mlflow_user, site):
    _, prefect, hooks = site
    result = mlflow_user.client.test_webhook(hooks[0].webhook_id)
    assert (result.success, result.response_status) == (True, 200)
    assert prefect.runs == []


def test_polling_finds_a_webhook_lost_by_a_dead_receiver(mlflow_user, site, name):
    receiver, _, _ = site
    version = mlflow_user.add(name)
    receiver.kill()
    mlflow_user.set_alias(version)
    receiver.start()
    assert version in list(mlflow_user.registry.candidates())
