"""Base class for user backends with kernels in C.

A subclass defines its name, its patterns, and the C statements for one matched region. Shapes and
attributes are literals in the statements; every input, weight and output of the region is a named pointer.
This module adds the function around the statements, has it compiled (`c_compiler`), and packs machine code
and weights into a kernel; the plug-in loads it from memory. Serving machines compile nothing.

Vendor libraries are declared, not linked: the plug-in opens the serving machine's file before the kernel, and
the bundle records the version.

The backend's identity contains the versions of compiler and libraries and the texts of the modules of the
class and of its base: after an edit, its kernels are measured again. `docs/add-a-backend.md` is the tutorial.
"""

import functools
import hashlib
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from collage.backends.base import Availability, Backend, BuildContext, PluginKernel
from collage.backends.common.c_compiler import build, compiler, compiler_version
from collage.backends.common.c_composites import SIGNATURE, driver, ordered_parts, set_union
from collage.errors import BackendError
from collage.frontend.model import Function
from collage.frontend.onnx_attributes import node_attributes
from collage.frontend.region import region_values, region_weights
from collage.graph.dataflow import Node
from collage.graph.index_set import IndexSet, indices
from collage.rules.base_rules import DFPattern
from collage.rules.composites import LabelledNodes
from collage.rules.pattern import Match, Pattern, matches_at
from collage.rules.rule import PartitionRule
from collage.rules.tvm_fusion import ONE_RESULT
from collage.rules.wrap import Composite, OnlyValid, Union
from collage.runtime.blob import Header, pack
from collage.runtime.plugin import (
    Library,
    library_override,
    library_reason,
    library_version,
    register_library,
)

__all__ = ["CSourceBackend", "Library", "Region", "Value"]

C_TYPES = {
    "float32": "float", "float64": "double", "bool": "_Bool",
    "float16": "uint16_t", "bfloat16": "uint16_t",
    **{f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip
"""C type of each dtype's elements; half precision as its bits."""

INCLUDES = "".join(f"#include <{name}.h>\n" for name in ("math", "stddef", "stdint", "string"))


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of the kernel; in an f-string, the name of its pointer."""

    name: str
    pointer: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    def __str__(self) -> str:
        return self.pointer


@dataclass(frozen=True)
class Region:
    """The region of one match.

    Attributes:
        function: function of the region.
        pattern: key of the pattern in `CSourceBackend.patterns`.
        match: nodes by their names in the pattern.
        inputs: input tensors without weights, in order of first use: in0, in1, ...
        weights: constants of the model, stored with the kernel: weight0, ...
        outputs: output tensors: out0, ...
    """

    function: Function
    pattern: str
    match: Match
    inputs: tuple[Value, ...]
    weights: tuple[Value, ...]
    outputs: tuple[Value, ...]

    def __getitem__(self, name: str) -> Value:
        """Return an input, weight or output by its name in the model."""
        for value in (*self.inputs, *self.weights, *self.outputs):
            if value.name == name:
                return value
        raise KeyError(f"{name!r} is no input, weight or output of the region")

    def __contains__(self, node: str) -> bool:
        """Tell whether the match has a node with the pattern's name `node`."""
        return node in self.match.named

    def node(self, name: str) -> Node:
        """Return the node with the pattern's name `name`."""
        return self.match.node(name)

    def attribute(self, node: Node, name: str, default: object = None) -> object:
        """Return an ONNX attribute of `node`, `default` if absent."""
        return node_attributes(self.function, node.index).get(name, default)


class CSourceBackend(Backend):
    """Subclass it with a `name`, `patterns` and `source`; the rest has defaults."""

    patterns: ClassVar[Mapping[str, Pattern]]
    """Supported regions by name, the label of the implementation. Two patterns that match the same nodes are
    two candidates; `source` tells them apart by `region.pattern`."""
    preamble: ClassVar[str] = ""
    """C code before the function: declarations, includes, helper functions."""
    libraries: ClassVar[Mapping[str, Library]] = {}
    """Vendor libraries of the source, by a name of your choice."""
    flags: ClassVar[tuple[str, ...]] = ("-O3", "-march=native")
    link_flags: ClassVar[tuple[str, ...]] = ("-lm",)
    """Linker flags for system libraries only: a bundle does not record them."""
    dtypes: ClassVar[frozenset[str]] = frozenset({"float32"})
    """Supported dtypes of all tensors in a region except weights."""

    def source(self, region: Region, threads: int) -> str:
        """Return C statements for the region's outputs, with shapes as literals.

        Operands are the pointers of `region`. At run time, a `return` of another number than 0 is an error.
        May raise BackendError with a reason.
        """
        raise NotImplementedError(f"{type(self).__name__} lacks a method `source`")

    def refuses(self, region: Region) -> str | None:
        """Return why a matched region is refused, None where it is supported."""
        return None

    def __init__(self) -> None:
        for name, library in self.libraries.items():
            register_library(name, library.distribution, library.glob, library.requirement)

    def availability(self) -> Availability:
        try:
            version = compiler_version(compiler())
        except BackendError as error:
            return Availability(str(error))
        missing = [reason for name in self.libraries if (reason := library_reason(name))]
        versions = {} if missing else {name: _version(name) for name in self.libraries}
        return Availability("; ".join(missing), {**versions, "compiler": version})

    @property
    def identity(self) -> str:
        classes = [cls for cls in type(self).__mro__ if issubclass(cls, CSourceBackend)]
        modules = {cls.__module__ for cls in classes} | {build.__module__, driver.__module__}
        return f"{super().identity} source={_digest(frozenset(modules))}"

    def unsupported(self, function: Function, node: int) -> str | None:
        reasons = []
        for name, pattern in self.patterns.items():
            for match in matches_at(pattern, function.graph, node):
                if match.nodes == 1 << node:
                    reason = self._refusal(function, name, match)
                    if reason is None:
                        return None
                    reasons.append(reason)
        operator = function.graph.nodes[node].op
        return reasons[0] if reasons else f"no pattern of {self.name} takes {operator} alone"

    def rule(self, function: Function) -> PartitionRule:
        """Return the rule for accepted matches with one result."""
        patterns = [
            Composite(
                name, DFPattern(name, pattern, functools.partial(self._refusal, function, name))
            )
            for name, pattern in self.patterns.items()
        ]
        return OnlyValid(Union(tuple(patterns)), ONE_RESULT)

    @property
    def labels(self) -> tuple[str, ...]:  # type: ignore[override]
        """Names of the patterns."""
        return tuple(self.patterns)

    def compile(
        self, function: Function, nodes: IndexSet, context: BuildContext, variant: str = ""
    ) -> PluginKernel:
        return self._kernel(
            function, nodes, context, variant, parts=[self._region(function, nodes, self.patterns)]
        )

    def compile_labelled(
        self,
        function: Function,
        nodes: IndexSet,
        context: BuildContext,
        *,
        variant: str,
        composites: Sequence[LabelledNodes],
    ) -> PluginKernel:
        labels = {composite.nodes: composite.label for composite in composites}
        ordered = ordered_parts(function, list(labels), nodes)
        parts = [self._region(function, part, (labels[part],)) for part in ordered]
        return self._kernel(function, nodes, context, variant, parts=parts)

    def _kernel(
        self,
        function: Function,
        nodes: IndexSet,
        context: BuildContext,
        variant: str,
        *,
        parts: Sequence[Region],
    ) -> PluginKernel:
        if variant not in self.variants:
            raise BackendError(f"{self.name} has no variant {variant!r}")
        code = self._translation_unit(parts, context.threads)
        image = build(compiler(), self.flags, code, self.link_flags)
        inputs, outputs = region_values(function, nodes)
        types = [function.graph.types[name] for name in (*inputs, *outputs)]
        header: Header = {
            "inputs": len(inputs), "libraries": list(self.libraries),
            "arguments": [{"dtype": each.dtype, "shape": list(each.shape)} for each in types],
        }  # fmt: skip
        weights = [function.weights[name] for name in region_weights(function, nodes)]
        blob = pack(header, [np.frombuffer(image, "u1"), *weights])
        return PluginKernel("shared_library", blob, libraries=frozenset(self.libraries))

    def _region(self, function: Function, nodes: IndexSet, patterns: Iterable[str]) -> Region:
        """Return the region of the first accepted match of exactly `nodes` among `patterns`."""
        for name, match in self._matches(function, nodes, patterns):
            if self._refusal(function, name, match) is None:
                return make_region(function, name, match)
        operators = "+".join(function.graph.nodes[index].op for index in indices(nodes))
        raise BackendError(f"no pattern of {self.name} fits {operators}")

    def _matches(
        self, function: Function, nodes: IndexSet, patterns: Iterable[str]
    ) -> Iterator[tuple[str, Match]]:
        for name in patterns:
            pattern = self.patterns[name]
            for root in indices(nodes):
                for match in matches_at(pattern, function.graph, root):
                    if match.nodes == nodes:
                        yield name, match

    def _refusal(self, function: Function, pattern: str, match: Match) -> str | None:
        types = function.graph.types
        for index in indices(match.nodes):
            node = function.graph.nodes[index]
            for name in filter(None, (*node.inputs, *node.outputs)):
                if name in function.weights:
                    if function.weights[name].dtype.name not in C_TYPES:
                        return f"C has no {function.weights[name].dtype.name}"
                elif name not in types:
                    return f"the shape of {name!r} depends on data"
                elif types[name].dtype not in self.dtypes:
                    return (
                        f"{name!r} is {types[name].dtype}, not {' or '.join(sorted(self.dtypes))}"
                    )
        return self.refuses(make_region(function, pattern, match))

    def _translation_unit(self, parts: Sequence[Region], threads: int) -> str:
        head = (
            f'{INCLUDES}#line 1 "{self.name} preamble"\n{textwrap.dedent(self.preamble).strip()}\n'
        )
        if len(parts) == 1:
            return head + self._c_function(parts[0], threads, "collage_kernel")
        functions = "".join(
            "static " + self._c_function(part, threads, f"part{number}")
            for number, part in enumerate(parts)
        )
        regions = [part.match.nodes for part in parts]
        main = driver(parts[0].function, regions, set_union(regions))
        return f"#include <stdlib.h>\n{head}{functions}{main}"

    def _c_function(self, region: Region, threads: int, name: str) -> str:
        sides = (
            ("inputs", region.inputs, "const "),
            ("constants", region.weights, "const "),
            ("outputs", region.outputs, ""),
        )
        pointers = "".join(
            f"  {const}{C_TYPES[value.dtype]} *restrict {value} = {side}[{position}]; (void){value};\n"
            for side, values, const in sides
            for position, value in enumerate(values)
        )
        return (
            f"{SIGNATURE.format(name=name)}"
            f'{pointers}#line 1 "{self.name} {region.pattern}"\n'
            f"{textwrap.dedent(self.source(region, threads)).strip()}\n  return 0;\n}}\n"
        )


def make_region(function: Function, pattern: str, match: Match) -> Region:
    """Name the pointers of a match."""
    inputs, outputs = region_values(function, match.nodes)
    weights = region_weights(function, match.nodes)
    types = function.graph.types
    return Region(
        function,
        pattern,
        match,
        tuple(Value(n, f"in{i}", types[n].shape, types[n].dtype) for i, n in enumerate(inputs)),
        weights=tuple(
            Value(n, f"weight{i}", function.weights[n].shape, function.weights[n].dtype.name)
            for i, n in enumerate(weights)
        ),
        outputs=tuple(
            Value(n, f"out{i}", types[n].shape, types[n].dtype) for i, n in enumerate(outputs)
        ),
    )


def _version(library: str) -> str:
    return library_override(library) or library_version(library)


@functools.cache
def _digest(modules: frozenset[str]) -> str:
    """Return the digest of the texts of the modules."""
    files = {getattr(sys.modules.get(module), "__file__", None) for module in modules}
    texts = sorted(Path(file).read_bytes() for file in files if file)
    return hashlib.sha256(b"".join(texts)).hexdigest()[:16]
