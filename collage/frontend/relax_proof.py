"""The proof that a translated function computes what the Relax function computes.

ONNX Runtime without optimisations is the reference of a compile's numbers, so a wrong translation would be a
wrong reference. The model's results are compared with those of the function that TVM alone compiles, on drawn
inputs. Where they differ, each operator is compared alone, on the same operands: the error names the one that
differs. Where none does, the difference is rounding before a discontinuity (`floor`, `argmax`), and the
translation holds.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax

from collage.errors import ModelError
from collage.frontend.onnxruntime_session import refusal_reason, session
from collage.frontend.relax_ir import build, static_type
from collage.frontend.relax_to_onnx import TranslatedFunction, TranslatedOperator
from collage.graph.dataflow import TensorType
from collage.runtime.arrays import numpy_dtype

SEED = 0

_TOLERANCES = {"float64": 1e-5, "float32": 2e-3, "float16": 2e-2}
"""Largest difference of a result as a share of its scale, by type; results of other types are equal."""

_TABLE_OPERATORS = ("take", "gather_elements", "gather_nd", "scatter_elements", "scatter_nd")
"""Operators with positions in their first operand: integer inputs stay below its dimensions."""

Arrays = Mapping[str, np.ndarray]


def prove_translation(translated: TranslatedFunction, path: Path) -> None:
    """Compare the model in the file `path` with TVM's executable of the Relax function.

    Raises:
        ModelError: ONNX Runtime or TVM refuses the function, or an operator computes other numbers.
    """
    function = translated.flat.function
    inputs = draw_inputs(translated)
    try:
        expected = _run_model(path, inputs)
    except Exception as error:  # noqa: BLE001 - ONNX Runtime has no base class of its errors
        raise _error(
            translated, f"is no model that ONNX Runtime runs ({refusal_reason(error)})"
        ) from None
    try:
        actual = _run_relax(function, list(inputs.values()))
    except Exception as error:  # noqa: BLE001 - TVM raises many classes, some of them foreign
        reason = str(error).strip().rsplit("\n", 1)[-1]
        raise _error(translated, f"does not run as TVM compiles it ({reason})") from None
    if not all(map(is_close, expected, actual)):
        _require_equal_operators(translated, path, inputs)


def draw_inputs(translated: TranslatedFunction) -> dict[str, np.ndarray]:
    """Draw inputs: normal floats of which a quarter are halves and zeros, and valid positions."""
    generator = np.random.default_rng(SEED)
    sizes = [
        size
        for item in translated.operators
        if item.operator.name in _TABLE_OPERATORS
        for size in item.operator.inputs[0].shape
    ]
    bounds = (0, max(1, min(sizes))) if sizes else (-8, 9)
    return {
        param.name: _drawn(kind, bounds, generator)
        for param in translated.flat.function.params
        if (kind := static_type(param.ty))
    }


def _drawn(kind: TensorType, bounds: tuple[int, int], generator: np.random.Generator) -> np.ndarray:
    if kind.dtype == "bool":
        return generator.integers(0, 2, kind.shape).astype(np.bool_)
    if "int" in kind.dtype:
        low = max(bounds[0], 0) if kind.dtype.startswith("uint") else bounds[0]
        return generator.integers(low, bounds[1], kind.shape).astype(kind.dtype)
    drawn = generator.standard_normal(kind.shape, dtype=np.float32)
    halves = np.round(drawn * 2) / 2
    chosen = generator.random(kind.shape) < 0.25
    return np.where(chosen, halves, drawn).astype(numpy_dtype(kind.dtype))


def is_close(expected: np.ndarray, actual: np.ndarray) -> bool:
    """Tell whether two results are equal up to rounding; NaN and infinities at equal places."""
    if expected.shape != actual.shape or expected.dtype != actual.dtype:
        return False
    tolerance = _TOLERANCES.get(str(expected.dtype))
    if tolerance is None:
        return bool(np.array_equal(expected, actual))
    first, second = expected.astype(np.float64), actual.astype(np.float64)
    finite = np.isfinite(first)
    if not np.array_equal(first[~finite], second[~finite], equal_nan=True):
        return False
    scale = np.abs(first[finite]).max(initial=0.0)
    differences = np.abs(first[finite] - second[finite])
    return bool(differences.max(initial=0.0) <= tolerance * scale)


def _require_equal_operators(translated: TranslatedFunction, path: Path, inputs: Arrays) -> None:
    """Compare each operator alone, on the operands that the model computes. Raises ModelError."""
    names = {name for item in translated.operators for name in (*item.operands, *item.results)}
    values = {**inputs, **_run_values(path, inputs, sorted(names - set(inputs)))}
    for item in translated.operators:
        actual = _run_relax(_alone(item), [values[name] for name in item.operands])
        expected = [values[name] for name in item.results]
        if not all(map(is_close, expected, actual)):
            raise _error(
                translated,
                f"has the operator {item.operator.call.op.name}, whose ONNX form computes other numbers "
                "than TVM; export the model to ONNX with its own exporter",
            )


def _alone(item: TranslatedOperator) -> relax.Function:
    """Make a function of one operator."""
    params: list[relax.Var] = []
    call = item.operator.call
    args = [_with_parameters(arg, params) for arg in call.args]
    return build(params, relax.Call(call.op, args, call.attrs, call.ty_args))


def _with_parameters(arg: relax.Expr, params: list[relax.Var]) -> relax.Expr:
    """Replace the tensors of an argument by new parameters."""
    if isinstance(arg, relax.Tuple) and any(
        isinstance(item.ty, relax.TensorType) for item in arg.fields
    ):
        return relax.Tuple([_with_parameters(item, params) for item in arg.fields])
    if not isinstance(arg.ty, relax.TensorType):
        return arg
    params.append(relax.Var(f"p{len(params)}", arg.ty))
    return params[-1]


def _run_model(path: Path, inputs: Arrays) -> list[np.ndarray]:
    return list(session(path).run(None, dict(inputs)))


def _run_values(path: Path, inputs: Arrays, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Run the model for the values `names` inside it."""
    model = onnx.load(path, load_external_data=False)
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    copy = path.with_name(f"values-{path.name}")
    onnx.save(model, copy)
    try:
        return dict(zip(names, _run_model(copy, inputs), strict=True))
    finally:
        copy.unlink()


def _run_relax(function: relax.Function, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Compile a function by TVM alone, without tuning, and run it on the CPU."""
    module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    executable = tvm.compile(module, target=tvm.target.Target("llvm"))
    machine = relax.VirtualMachine(executable, tvm.cpu())
    return _arrays(machine["main"](*map(tvm.runtime.tensor, operands)))


def _arrays(result: Any) -> list[np.ndarray]:
    """Return the arrays of a tensor, or of a tuple of tensors."""
    if isinstance(result, tvm.runtime.Tensor):
        return [result.numpy()]
    return [array for item in result for array in _arrays(item)]


def _error(translated: TranslatedFunction, reason: str) -> ModelError:
    return ModelError(f"the Relax function {translated.flat.name} {reason}")
