"""A bundle behind the interface of `onnxruntime.InferenceSession`, for programs that have one already.

    from collage import InferenceSession      # instead of: from onnxruntime import InferenceSession
    session = InferenceSession("bundle")
    outputs = session.run(None, {"x": array})

The methods are those that programs call to compute: inputs and outputs with ONNX Runtime's names of types,
`run` and `run_with_iobinding` on arrays of the host, `get_providers`. Threads, precision and device were
chosen when the bundle was compiled; session options and providers are accepted and change nothing. Errors are
those of `collage.errors`. Any thread may call a session; one bundle computes one call at a time.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from collage.errors import InputError
from collage.runtime.fallback import ModelValue
from collage.runtime.loader import LoadedBundle, load
from collage.runtime.manifest import Tensor
from collage.runtime.value_types import Kind, ValueType

log = logging.getLogger(__name__)

PROVIDERS = {False: "CPUExecutionProvider", True: "CUDAExecutionProvider"}
_FRAMEWORK_NAMES = {"float32": "float", "float64": "double"}
"""ONNX Runtime's names of element types that differ from numpy's."""


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or an output, as `onnxruntime.NodeArg`.

    Attributes:
        name: its name.
        type: its type, e.g. "tensor(float)".
        shape: extents, None where any is possible; empty for a scalar and for a value that is no tensor.
    """

    name: str
    type: str
    shape: list[int | None]


class InferenceSession:
    """A loaded bundle with the methods of ONNX Runtime's session."""

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | LoadedBundle,
        sess_options: object = None,
        providers: object = None,
        provider_options: object = None,
        *,
        verify_keys: Sequence[str | os.PathLike[str]] = (),
        entry: str | None = None,
        **further: object,
    ) -> None:
        """Load a bundle.

        Args:
            path_or_bytes: folder of the bundle, or a loaded bundle; the name is ONNX Runtime's.
            sess_options: accepted; a number of threads unlike the bundle's is told in the log.
            providers: accepted without an effect.
            provider_options: accepted without an effect.
            verify_keys: public keys, as of `collage.load`.
            entry: entry of the bundle; None: the only one.
            further: accepted without an effect.

        Raises:
            BundleError: as of `collage.load`.
            InputError: the bundle has several entries, or not this one; or bytes were passed.
        """
        if isinstance(path_or_bytes, bytes | bytearray):
            raise InputError("a bundle is a folder, not bytes of a model; pass its path")
        if isinstance(path_or_bytes, LoadedBundle):
            self._bundle = path_or_bytes
        else:
            self._bundle = load(Path(path_or_bytes), [Path(key) for key in verify_keys])
        self._entry = self._only_entry() if entry is None else entry
        self._bundle.dispatch_counts(self._entry)  # raises for an unknown entry
        self._inputs, self._defaults = self._input_arguments()
        self._outputs = self._output_arguments()
        self._warn_of_threads(sess_options)

    def get_inputs(self) -> list[NodeArg]:
        """Return the inputs that a call must give."""
        return list(self._inputs)

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Return the inputs that have a default."""
        return list(self._defaults)

    def get_outputs(self) -> list[NodeArg]:
        """Return the outputs."""
        return list(self._outputs)

    def get_providers(self) -> list[str]:
        """Return ONNX Runtime's name of the bundle's device: programs choose where they put inputs by it."""
        return [PROVIDERS[self._bundle.manifest.device.is_gpu]]

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, object],
        run_options: object = None,
    ) -> list[Any]:
        """Compute outputs.

        Args:
            output_names: names of the outputs to return, in this order; None or empty: all.
            input_feed: inputs by name: arrays, objects with `__dlpack__`, numbers or lists of numbers.
            run_options: accepted without an effect.

        Raises:
            InputError: an unknown name, or an input that the bundle does not take.
        """
        names = list(output_names or ()) or [output.name for output in self._outputs]
        unknown = sorted(set(names) - {output.name for output in self._outputs})
        if unknown:
            raise InputError(
                f"unknown output {unknown[0]!r}; the outputs are "
                f"{', '.join(output.name for output in self._outputs)}"
            )
        outputs = self._bundle.run(self._arrays(input_feed), self._entry)
        return [outputs[name] for name in names]

    def io_binding(self) -> "IOBinding":
        """Return an empty binding of inputs and outputs on the host."""
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: "IOBinding", run_options: object = None) -> None:
        """Compute the bound outputs from the bound inputs. Errors as of `run`."""
        iobinding.receive(self.run(iobinding.output_names, iobinding.inputs))

    def _only_entry(self) -> str:
        entries = self._bundle.entries
        if len(entries) == 1:
            return entries[0]
        raise InputError(
            f"the bundle has {len(entries)} entries; pass entry={' or '.join(entries)}"
        )

    def _input_arguments(self) -> tuple[list[NodeArg], list[NodeArg]]:
        """Return the inputs without and with a default."""
        optional = set(self._bundle.defaults(self._entry))
        arguments = self._arguments("inputs")
        fallback = self._bundle.fallback(self._entry)
        if fallback is not None:
            optional |= {value.name for value in fallback.inputs if value.has_default}
        return (
            [argument for argument in arguments if argument.name not in optional],
            [argument for argument in arguments if argument.name in optional],
        )

    def _output_arguments(self) -> list[NodeArg]:
        return self._arguments("outputs")

    def _arguments(self, side: str) -> list[NodeArg]:
        """Return the inputs or outputs: of the original model if the bundle has it, else of the functions."""
        fallback = self._bundle.fallback(self._entry)
        if fallback is not None:
            values: Sequence[ModelValue] = getattr(fallback, side)
            return [
                NodeArg(value.name, _type_text(value.type), _shape(value.shape)) for value in values
            ]
        functions = self._bundle.manifest.functions_of(self._entry)
        columns: list[tuple[Tensor, ...]] = list(
            zip(*(getattr(function, side) for function in functions), strict=True)
        )
        return [_merged(tensors) for tensors in columns]

    def _arrays(self, feeds: Mapping[str, object]) -> dict[str, object]:
        """Return the feeds with numbers and lists as arrays of the input's dtype."""
        dtypes = {
            tensor.name: tensor.dtype
            for function in self._bundle.manifest.functions_of(self._entry)
            for tensor in function.inputs
        }
        return {
            name: np.asarray(value, dtypes[name])
            if isinstance(value, list | tuple | int | float) and name in dtypes
            else value
            for name, value in feeds.items()
        }

    def _warn_of_threads(self, sess_options: object) -> None:
        threads = getattr(sess_options, "intra_op_num_threads", 0)
        if threads and threads != self._bundle.manifest.threads:
            log.warning(
                "the session options ask for %s threads; the bundle was compiled for %s",
                threads,
                self._bundle.manifest.threads,
            )


class IOBinding:
    """Inputs and outputs of one session on the host, as `onnxruntime.IOBinding`."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self.inputs: dict[str, object] = {}
        self._outputs: dict[str, np.ndarray | None] = {}
        self._results: list[Any] = []

    @property
    def output_names(self) -> list[str]:
        """Names of the bound outputs, in order."""
        return list(self._outputs)

    def bind_cpu_input(self, name: str, arr_on_cpu: np.ndarray) -> None:
        """Bind an array of the host to an input; it is read when the session runs."""
        self.inputs[name] = arr_on_cpu

    def bind_output(
        self, name: str, device_type: str = "cpu", *placement: object, buffer_ptr: object = None
    ) -> None:
        """Bind an output; its array is new in each run.

        Args:
            name: name of the output.
            device_type: only "cpu".
            placement: number of the device, element type, shape and address, as in ONNX Runtime.
            buffer_ptr: the address by name.

        Raises:
            InputError: memory of the caller was passed, or memory of a device.
        """
        address = buffer_ptr or (placement[3] if len(placement) > 3 else None)
        if device_type != "cpu" or address:
            raise InputError(
                f"the output {name!r} can be bound on the host only, in memory of the session; for memory "
                "of a device call collage.load(...).run_tensors"
            )
        self._outputs[name] = None

    def copy_outputs_to_cpu(self) -> list[Any]:
        """Return the results of the latest run, in the order of binding."""
        return list(self._results)

    def clear_binding_inputs(self) -> None:
        """Forget the inputs."""
        self.inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Forget the outputs and the results."""
        self._outputs.clear()
        self._results = []

    def receive(self, results: Sequence[Any]) -> None:
        """Keep the results of a run."""
        self._results = list(results)


def _merged(tensors: Sequence[Tensor]) -> NodeArg:
    """Return the argument of all shape sets: an extent that differs among them is None."""
    shapes = {tensor.shape for tensor in tensors}
    first = tensors[0]
    if first.shape is None or len({len(shape or ()) for shape in shapes}) > 1:
        return NodeArg(first.name, _type_text(ValueType(Kind.TENSOR, first.dtype)), [])
    extents = zip(*(tensor.shape or () for tensor in tensors), strict=True)
    merged = [sizes[0] if len(set(sizes)) == 1 and sizes[0] >= 0 else None for sizes in extents]
    return NodeArg(first.name, _type_text(ValueType(Kind.TENSOR, first.dtype)), merged)


def _shape(extents: Sequence[int] | None) -> list[int | None]:
    return [size if size >= 0 else None for size in extents or ()]


def _type_text(value_type: ValueType) -> str:
    """Return a type in ONNX Runtime's words.

    >>> _type_text(ValueType(Kind.TENSOR, "float32"))
    'tensor(float)'
    """
    element = _type_text(value_type.element) if value_type.element else ""
    dtype = _FRAMEWORK_NAMES.get(value_type.dtype, value_type.dtype)
    kind = "seq" if value_type.kind is Kind.SEQUENCE else str(value_type.kind)
    return f"{kind}({','.join(filter(None, (dtype, element)))})"
