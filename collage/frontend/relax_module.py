"""Public functions of a Relax module, each as one straight line of operators.

A function calls others, nests expressions and annotates values with devices (`vdevice`). Its flat form has
none of these: calls of Relax functions are inlined, and each operator is one binding on variables and
constants. The flat function is what `relax_to_onnx` translates. Devices are gathered on the way, and checked
by the compile against its target.

Control flow, symbolic shapes, recursion and tuples as parameters have no flat form: they are errors.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import tvm
from tvm import relax

from collage.errors import ModelError
from collage.frontend.relax_ir import result_types, simplify

_DEVICE_KINDS = {1: "cpu", 2: "cuda"}
"""Names of devices by the device types of DLPack."""

_TO_DEVICE = ("relax.to_vdevice", "relax.hint_on_device")

MAX_CALL_DEPTH = 64
"""Limit of nested calls of functions; a recursion is deeper than any."""


@dataclass(frozen=True, order=True)
class DevicePin:
    """A device that a `vdevice` annotation names.

    Attributes:
        device: "cpu" or "cuda", or the kind of another target.
        index: number of the device.
        memory_scope: scope of the memory, usually "global".
    """

    device: str
    index: int = 0
    memory_scope: str = "global"

    def __str__(self) -> str:
        return f"{self.device}:{self.index}:{self.memory_scope}"


@dataclass(frozen=True)
class FlatFunction:
    """A function without calls of others and without device annotations.

    Attributes:
        name: name in the module.
        function: straight line of operators in one dataflow block; static types.
        pins: a value of each device that annotations name, by device.
    """

    name: str
    function: relax.Function
    pins: Mapping[DevicePin, str]


def flat_functions(module: tvm.IRModule) -> list[FlatFunction]:
    """Return the flat forms of the public Relax functions of a module, by name.

    Raises:
        ModelError: the module is malformed, has no public Relax function, or a function has no flat form.
    """
    if not relax.analysis.check_well_formed(module):
        raise ModelError(
            "the Relax module is malformed; relax.analysis.check_well_formed(module) says why"
        )
    functions = {
        variable.name_hint: function
        for variable, function in module.functions.items()
        if isinstance(function, relax.Function)
    }
    public = [name for name in functions if "global_symbol" in (functions[name].attrs or {})]
    if not public:
        raise ModelError(
            "the Relax module has no public function; give a function the attribute global_symbol"
        )
    return [_Flattener(name, functions).flatten() for name in sorted(public)]


@dataclass
class _Flattener:
    """Evaluation of one function, with operators emitted into a new function."""

    name: str
    functions: Mapping[str, relax.Function]
    builder: relax.BlockBuilder = field(default_factory=relax.BlockBuilder)
    pins: dict[DevicePin, str] = field(default_factory=dict)
    depth: int = 0

    def flatten(self) -> FlatFunction:
        function = self.functions[self.name]
        params = [self._parameter(param) for param in function.params]
        with self.builder.function("main", params):
            with self.builder.dataflow():
                result = self._apply(function, params)
                output = self.builder.emit_output(self.builder.normalize(result))
            self.builder.emit_func_output(output)
        flat = simplify(self.builder.get()["main"])
        if flat is None or None in result_types(flat):
            raise self._error("has a result that is no tensor of known shape; bind its dimensions")
        return FlatFunction(self.name, flat, self.pins)

    def _parameter(self, param: relax.Var) -> relax.Var:
        """Return a parameter without a device. Raises ModelError for other types than static tensors."""
        if not isinstance(param.ty, relax.TensorType):
            raise self._error(
                f"has the parameter {param.name} of type {param.ty}; give tensors as parameters"
            )
        if symbols := _symbols(param.ty):
            raise self._error(
                f"has the parameter {param.name} of unknown shape ({', '.join(symbols)}); bind its "
                "dimensions with relax.transform.BindSymbolicVars"
            )
        return relax.Var(param.name, relax.TensorType(param.ty.shape.values, param.ty.dtype))

    def _apply(self, function: relax.Function, args: list[relax.Expr]) -> relax.Expr:
        """Evaluate the body of a function on arguments in its own scope."""
        if self.depth == MAX_CALL_DEPTH:
            raise self._error(
                f"calls functions in more than {MAX_CALL_DEPTH} levels, or itself; unroll the recursion"
            )
        self.depth += 1
        scope: dict[relax.Var, relax.Expr] = {}
        for param, arg in zip(function.params, args, strict=True):
            self._pin(param, param.name)
            scope[param] = arg
        result = self._evaluate(function.body, scope)
        self.depth -= 1
        return result

    def _evaluate(self, expr: relax.Expr, scope: dict[relax.Var, relax.Expr]) -> relax.Expr:
        if isinstance(expr, relax.Var):
            return scope[expr]
        if isinstance(expr, relax.SeqExpr):
            for block in expr.blocks:
                for binding in block.bindings:
                    scope[binding.var] = self._bound(binding, scope)
            return self._evaluate(expr.body, scope)
        if isinstance(expr, relax.Call):
            return self._call(expr, scope)
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self._evaluate(item, scope) for item in expr.fields])
        if isinstance(expr, relax.TupleGetItem):
            value = self._evaluate(expr.tuple_value, scope)
            if isinstance(value, relax.Tuple):
                return value.fields[expr.index]
            return self.builder.emit(relax.TupleGetItem(value, expr.index))
        if isinstance(expr, tvm.ir.Constant) and isinstance(expr.ty, relax.TensorType):
            self._pin(expr, "a constant")
            return relax.const(expr.value)
        if isinstance(expr, relax.If):
            raise self._error(
                "has control flow (If), which has no ONNX form here; export the model to ONNX instead"
            )
        if isinstance(expr, relax.Function):
            return self._closure(expr, scope)
        return expr

    def _bound(self, binding: relax.Binding, scope: dict[relax.Var, relax.Expr]) -> relax.Expr:
        """Evaluate a binding. Raises ModelError for a cast that can fail at run time."""
        self._pin(binding.var, binding.var.name)
        if isinstance(binding, relax.VarBinding):
            return self._evaluate(binding.value, scope)
        value = self._evaluate(binding.value, scope)
        if isinstance(value.ty, relax.TensorType) and isinstance(binding.ty, relax.TensorType):
            types = (value.ty, binding.ty)
            if not any(map(_symbols, types)) and len({_static_type(item) for item in types}) == 1:
                return value
        raise self._error(
            f"has a match_cast of {binding.var.name} that depends on values; give static shapes"
        )

    def _call(self, call: relax.Call, scope: dict[relax.Var, relax.Expr]) -> relax.Expr:
        target = call.op
        if isinstance(target, relax.GlobalVar) and target.name_hint in self.functions:
            target = self.functions[target.name_hint]
        elif isinstance(target, relax.Var):
            target = scope[target]
        if isinstance(target, tvm.ir.Op) and target.name.startswith("relax.call_"):
            raise self._error(f"has {target.name} ({call.args[0]}), which has no ONNX form")
        if not isinstance(target, tvm.ir.Op | relax.Function):
            raise self._error(f"calls {target}, which is no Relax function or operator")
        args = [self._evaluate(item, scope) for item in call.args]
        if isinstance(target, relax.Function):
            return self._apply(target, args)
        if target.name in _TO_DEVICE:
            self._pin_moved(call)
            return args[0]
        try:
            return self.builder.emit(relax.Call(target, args, call.attrs, call.ty_args))
        except (tvm.error.TVMError, ValueError, TypeError) as error:
            raise self._error(f"has {target.name} of unknown type ({error})") from None

    def _closure(self, function: relax.Function, scope: dict[relax.Var, relax.Expr]) -> relax.Expr:
        """Return a local function. Raises ModelError where it reads variables of its caller."""
        if captured := relax.analysis.free_vars(function):
            names = ", ".join(variable.name for variable in captured)
            raise self._error(f"has a local function that reads {names}; pass them as parameters")
        return function

    def _pin(self, value: relax.Expr, name: str) -> None:
        for device in _devices(value.ty):
            self.pins.setdefault(_pin_of(device), name)

    def _pin_moved(self, call: relax.Call) -> None:
        name = call.op.name.removeprefix("relax.")
        if call.op.name == "relax.to_vdevice":
            self.pins.setdefault(_pin_of(call.attrs.dst_vdevice), name)
            return
        kind = int(call.attrs.device_type)
        device = _DEVICE_KINDS.get(kind, f"device type {kind}")
        scope = str(call.attrs.memory_scope)
        self.pins.setdefault(DevicePin(device, int(call.attrs.index), scope), name)

    def _error(self, reason: str) -> ModelError:
        return ModelError(f"the Relax function {self.name} {reason}")


def _pin_of(device: relax.VDevice) -> DevicePin:
    kind = int(device.target.get_target_device_type())
    name = _DEVICE_KINDS.get(kind, str(device.target.kind.name))
    return DevicePin(name, int(device.vdevice_id), str(device.memory_scope))


def _devices(value_type: relax.Type) -> Iterator[relax.VDevice]:
    """Yield the devices of a type, and of the fields of a tuple."""
    if isinstance(value_type, relax.TupleType):
        for item in value_type.fields:
            yield from _devices(item)
    elif isinstance(value_type, relax.TensorType) and value_type.vdevice is not None:
        yield value_type.vdevice


def _symbols(tensor: relax.TensorType) -> list[str]:
    """Return what is unknown of a shape, empty if it is static."""
    if not isinstance(tensor.shape, relax.ShapeExpr):
        return ["no dimensions"]
    return [str(dim) for dim in tensor.shape.values if not isinstance(dim, tvm.tirx.IntImm)]


def _static_type(tensor: relax.TensorType) -> tuple[tuple[int, ...], str]:
    return tuple(int(dim) for dim in tensor.shape.values), str(tensor.dtype)
