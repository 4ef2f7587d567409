"""What every registry does: each test runs against a folder, a real S3 server and a real MLflow server."""

import json

import numpy as np
import onnx
import onnxruntime
import pytest

from collage.errors import RegistryError
from collage.registry import UserTags, VersionStatus, open_registry


def candidates(user, name):
    return [version.version for version in user.registry.candidates() if version.name == name]


def test_the_version_with_the_alias_is_the_candidate(user, name):
    first, second = user.add(name), user.add(name)
    assert candidates(user, name) == []
    user.set_alias(first)
    assert candidates(user, name) == [first.version]
    user.set_alias(second)
    assert candidates(user, name) == [second.version]
    assert user.registry.find(name) == second
    assert user.registry.find(name, first.version) == first
    assert second.registry == user.registry.url


def test_another_alias_is_asked_for_by_name(user, name):
    version = user.add(name)
    user.set_alias(version, "champion")
    assert candidates(user, name) == []
    champions = open_registry(user.address, alias="champion")
    assert name in [version.name for version in champions.candidates()]


@pytest.mark.parametrize("external", [False, True], ids=["one file", "external data"])
def test_a_download_runs(user, name, external, tmp_path):
    user.set_alias(user.add(name, external))
    folder = tmp_path / "copy"
    folder.mkdir()
    file = user.registry.download(user.registry.find(name), folder)
    assert file.is_relative_to(folder)
    onnx.checker.check_model(str(file))
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {"x": np.ones((1, 64), "float32")})
    assert result.tolist() == [[64.0] * 64]


@pytest.mark.parametrize(
    "status",
    [
        VersionStatus("running", options_digest="0a1b"),
        VersionStatus("optimized", bundle="ab" * 32, speedup=1.25, environment="local=0a1b"),
        VersionStatus("optimized", bundle="a=1,b=2", speedup=0.5, environment="a=1,b=2"),
        VersionStatus("failed", reason="Überraschung: " + "x" * 200),
    ],
    ids=["running", "optimized", "two environments", "failed"],
)
def test_a_mark_is_read_and_replaces_the_one_before(user, name, status):
    version = user.add(name)
    assert user.registry.status(version) == VersionStatus()
    user.registry.record_status(version, VersionStatus("x", "y", 3.0, "z", "e"))
    user.registry.record_status(version, status)
    user.registry.record_status(version, status)
    assert open_registry(user.address).status(version) == status


def test_users_set_options_of_one_version(user, name):
    version, other = user.add(name), user.add(name)
    assert user.registry.user_tags(version) == UserTags()
    digests = set()
    for options in ({"dims": {"batch": 1}}, {"dims": {"batch": 2}}, {"effort": "quick"}):
        user.set_options(version, options)
        tags = user.registry.user_tags(version)
        assert json.loads(tags.options) == options
        user.set_options(version, options)
        assert user.registry.user_tags(version) == tags
        digests.add(tags.digest)
    assert len(digests) == 3
    assert user.registry.user_tags(other) == UserTags()
    assert name in user.registry.options_place(version)
    assert "options" in user.registry.options_place(version)


def test_accepting_and_marking_ask_for_nothing(user, name):
    version = user.add(name)
    user.registry.accept(version)
    user.registry.record_status(version, VersionStatus("optimized"))
    assert candidates(user, name) == []
    answered = open_registry(user.address, alias="optimized", accepted="other")
    assert answered.find(name) == version
    user.registry.accept(version)
    newer = user.add(name)
    user.registry.accept(newer)
    assert answered.find(name) == newer


@pytest.mark.parametrize("version", [None, "77777"])
def test_what_is_not_there(user, name, version):
    user.add(name)
    with pytest.raises(RegistryError, match=name) as error:
        user.registry.find(name, version)
    assert "alias" in str(error.value) or "77777" in str(error.value)
    with pytest.raises(RegistryError, match="nobody"):
        user.registry.find("nobody", version)


def test_one_alias_cannot_ask_and_answer(user):
    with pytest.raises(RegistryError, match="two names"):
        open_registry(user.address, alias="a", accepted="a")
