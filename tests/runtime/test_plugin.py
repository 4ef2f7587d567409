import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from collage.errors import BackendError
from collage.runtime import plugin

ROOT = Path(__file__).parents[2]
RUNTIME = ("onnxruntime", "openvino", "onednn")
"""What the extra `runtime` installs; the others need a machine of their kind."""


@pytest.mark.parametrize("name", RUNTIME)
def test_known_libraries_are_found_without_importing_them(name):
    assert plugin.library_path(name).is_file()
    assert plugin.library_version(name)
    assert plugin.library_reason(name) == ""


def test_the_extra_runtime_has_the_pins_of_the_libraries():
    """A wheel's metadata is static text, so the pins stand there once more."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = {plugin.LIBRARIES[name].requirement for name in RUNTIME}
    assert set(project["optional-dependencies"]["runtime"]) == pins


def test_the_plugin_has_the_pins_of_the_libraries():
    """A program without Python reads them from the plug-in, which asks for the same requirements."""
    source = (ROOT / "native" / "core" / "library.cc").read_text()
    table = source.partition("kPackages = {")[2].partition("};")[0]
    packages = dict(re.findall(r'\{"(\w+)", "([^"]+)"\}', table))
    opened = set(plugin.LIBRARIES) - {"nvrtc_builtins"}
    assert packages == {name: plugin.LIBRARIES[name].requirement for name in opened}


def test_the_extra_cuda_has_the_pins_of_the_libraries():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = {library.requirement for library in plugin.LIBRARIES.values()}
    assert set(project["optional-dependencies"]["cuda"]) <= pins


@pytest.mark.parametrize("package", ["apache-tvm", "apache-tvm-ffi", "onednn-devel-cpu-gomp"])
def test_build_and_use_have_the_same_exact_pins(package):
    """The plug-in is built against headers of exactly the version that it runs with."""
    text = (ROOT / "pyproject.toml").read_text()
    versions = set(re.findall(rf'"{package}==([^"]+)"', text))
    constraints = (ROOT / "constraints.txt").read_text()
    (version,) = versions
    assert f"\n{package}=={version}\n" in constraints
    if package.startswith("onednn"):
        assert plugin.LIBRARIES["onednn"].requirement == f"onednn-cpu-gomp=={version}"


@pytest.mark.parametrize("name", RUNTIME)
def test_constraints_satisfy_the_pins_of_the_libraries(name):
    pin = Requirement(plugin.LIBRARIES[name].requirement)
    versions = {
        constraint.name: constraint.specifier
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if (text := line.partition("#")[0].strip())
        and (constraint := Requirement(text)).name == pin.name
    }
    (version,) = versions[pin.name]
    assert pin.specifier.contains(version.version)


@pytest.mark.parametrize("name", sorted(set(plugin.library_names()) - {*RUNTIME}))
def test_libraries_of_other_machines_are_found_or_named(name):
    reason = plugin.library_reason(name)
    assert plugin.library_path(name).is_file() if not reason else "pip install" in reason


def test_users_add_libraries(monkeypatch):
    monkeypatch.delitem(plugin.LIBRARIES, "blas", raising=False)
    plugin.register_library("blas", "numpy", "_multiarray_umath*.so")
    assert plugin.library_distribution("blas") == "numpy"
    assert plugin.library_path("blas").is_file()
    plugin.LIBRARIES.pop("blas")


def test_a_name_means_one_library():
    plugin.register_library("onednn", "onednn-cpu-gomp", "libdnnl.so.3")
    with pytest.raises(BackendError, match="'onednn' is taken by onednn-cpu-gomp"):
        plugin.register_library("onednn", "numpy", "_multiarray_umath*.so")


def test_children_are_told_what_is_installed(monkeypatch):
    monkeypatch.setattr(plugin, "LIBRARIES", dict(plugin.LIBRARIES))
    plugin.register_library("a-blas", "numpy", "_multiarray_umath*.so")
    plugin.register_library("absent", "no-such-distribution", "libabsent.so")
    environment = plugin.library_environment()
    assert environment["COLLAGE_LIB_A_BLAS"] == str(plugin.library_path("a-blas"))
    assert "COLLAGE_LIB_ABSENT" not in environment


def test_an_unknown_library_lists_the_known_ones():
    with pytest.raises(BackendError, match="onednn, onnxruntime, openvino"):
        plugin.library_path("nonesuch")


def test_the_environment_overrides_the_path(monkeypatch, tmp_path):
    monkeypatch.setenv("COLLAGE_LIB_ONEDNN", str(tmp_path))
    assert plugin.library_path("onednn") == tmp_path
