"""A Relax module becomes a bundle: its public functions are entries, its devices restrict the backends."""

import re
from pathlib import Path

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op

import collage
from collage.backends.registry import known_backends
from collage.entries import is_relax_module
from collage.errors import ModelError, OptionError
from collage.frontend.relax_module import DevicePin, FlatFunction
from collage.pipeline.module_compile import backends_on_device, module_entries, require_target
from tests.support.relax_modules import module_of, variable

DOCUMENT = Path(__file__).parents[2] / "docs" / "entries.md"


def flat(*pins):
    function = relax_function()
    return FlatFunction(
        "main", function, {pin: f"value{number}" for number, pin in enumerate(pins)}
    )


def relax_function():
    x = variable("x", 2)
    return module_of([x], op.exp(x))["main"]


def test_a_module_is_no_path():
    assert is_relax_module(module_of([], relax.const(1.0)))
    assert not is_relax_module("model.onnx")
    assert not is_relax_module({"main": "model.onnx"})


def test_values_on_the_target_are_accepted():
    require_target([flat(), flat(DevicePin("cpu"))], "cpu")
    require_target([flat(DevicePin("cuda"))], "cuda")


@pytest.mark.parametrize(
    "pin",
    [DevicePin("cuda"), DevicePin("cpu", 1), DevicePin("cpu", 0, "local"), DevicePin("vulkan")],
)
def test_values_on_another_device_are_refused(pin):
    message = re.escape(f"main pins value1 to {pin}, and the compile is for cpu:0:global; ")
    with pytest.raises(ModelError, match=message):
        require_target([flat(DevicePin("cpu"), pin)], "cpu")


def test_pinned_values_exclude_backends_of_another_device():
    names = tuple(backend.name for backend in known_backends(None, "cuda"))
    options = collage.Options(device="cuda", backends=names)
    assert set(names) - set(backends_on_device(options)) == {"onnxruntime-host"}
    with pytest.raises(OptionError, match="pins values to cuda, where none"):
        backends_on_device(collage.Options(device="cuda", backends=("onnxruntime-host",)))
    cpu = collage.Options(backends=("tvm", "onednn"))
    assert backends_on_device(cpu) == cpu.backends


def test_a_function_with_an_invalid_name_is_refused(tmp_path):
    module = module_of([], relax.const(1.0))
    function = module["main"].with_attr("global_symbol", "collage_x")
    with pytest.raises(OptionError, match="'collage_x' cannot name an entry"):
        module_entries(type(module)({"collage_x": function}), collage.Options(), tmp_path)


@pytest.mark.full
def test_the_documents_module_is_a_bundle_of_two_entries(tmp_path, monkeypatch):
    (code,) = [
        block
        for block in re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
        if "ir_module" in block
    ]
    (tmp_path / "speech_module.py").write_text(code.partition("collage.compile(")[0])
    monkeypatch.syspath_prepend(tmp_path)
    from speech_module import Speech  # type: ignore[import-not-found]

    options = collage.Options(
        threads=1, workers=1, measure_budget_s=2, verify_s=0.1, refine_s=0, tune_s=0,
        backends=("tvm", "onnxruntime"), allow_slower=True, fallback=False, cache_dir=tmp_path / "store",
    )  # fmt: skip
    collage.compile(Speech, options, output=tmp_path / "speech")
    bundle = collage.load(tmp_path / "speech")
    assert sorted(bundle.entries) == ["decode", "encode"]
    generator = np.random.default_rng(1)
    audio, weight = (
        generator.standard_normal(shape).astype(np.float32) for shape in ((4, 16), (16, 16))
    )
    states = bundle.run({"audio": audio, "w": weight}, entry="encode")["output"]
    hidden = np.exp(np.maximum(audio @ weight, 0))
    np.testing.assert_allclose(states, hidden / hidden.sum(1, keepdims=True), rtol=1e-4)
    copied, tokens = bundle.run({"states": states}, entry="decode").values()
    np.testing.assert_array_equal(copied, states)
    np.testing.assert_array_equal(tokens, states.argmax(1))
