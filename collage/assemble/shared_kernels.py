"""Equal kernels of several functions get one symbol: code and weights are stored and loaded once.

Entries of a bundle (prefill and decode) and shape sets often compute parts that do not differ. Equal means
equal in every byte: a plug-in's kernel by its blob, a TIR function by its structure and constants. Kernels
of one function are never joined: a kernel may be bound to the tensors of its last call, and binding it anew
at every call costs time. So the second of two equal kernels of a function is joined with the second of
another one.

On a GPU nothing is joined: calls of two functions may be in flight on two streams, and kernels own memory.

Complexity: one hash of each kernel's content.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import tvm
import tvm_ffi

from collage.assemble.function_plan import FunctionPlan
from collage.backends.base import Kernel, PluginKernel, TirKernel

_Content = tuple[str, int]
"""Digest of a kernel's content, and how many equal ones precede it in its function."""


def share_kernels(plans: Sequence[FunctionPlan]) -> list[FunctionPlan]:
    """Return the plans with one symbol for kernels that are equal in several functions."""
    bodies = _Bodies()
    contents = [_contents(plan, bodies) for plan in plans]
    functions = Counter(content for plan in contents for content in plan if content)
    return [
        replace(
            plan,
            kernels=tuple(
                replace(planned, shared=_symbol(content))
                if content and functions[content] > 1
                else planned
                for planned, content in zip(plan.kernels, plan_contents, strict=True)
            ),
        )
        for plan, plan_contents in zip(plans, contents, strict=True)
    ]


class _Bodies:
    """TIR functions without repetition: equal ones have one number."""

    def __init__(self) -> None:
        self._numbers: dict[int, list[tuple[tvm.Object, int]]] = {}
        self._count = 0

    def number(self, body: tvm.Object) -> int:
        """Return the number of the function that is equal to `body` in structure."""
        similar = self._numbers.setdefault(tvm_ffi.structural_hash(body), [])
        for earlier, number in similar:
            if tvm_ffi.structural_equal(earlier, body):
                return number
        similar.append((body, self._count))
        self._count += 1
        return self._count - 1


def _contents(plan: FunctionPlan, bodies: _Bodies) -> list[_Content | None]:
    """Return the content of each kernel; None for a view, and for a kernel with a shared symbol."""
    earlier: Counter[str] = Counter()
    contents: list[_Content | None] = []
    for planned in plan.kernels:
        digest = "" if planned.shared else _digest(planned.kernel, bodies)
        contents.append((digest, earlier[digest]) if digest else None)
        earlier[digest] += 1
    return contents


def _digest(kernel: Kernel | None, bodies: _Bodies) -> str:
    """Return the digest of a kernel's content; "" for a view, and for a kernel of a GPU."""
    digest = hashlib.sha256()
    match kernel:
        case PluginKernel(kind, blob, allocates):
            digest.update(f"{kind} {allocates} ".encode())
            digest.update(blob)
        case TirKernel(module, name, constants):
            body = module[name].without_attr("global_symbol")
            digest.update(f"tir {bodies.number(body)} ".encode())
            for constant in constants:
                digest.update(f"{constant.dtype}{constant.shape}".encode())
                digest.update(np.ascontiguousarray(constant).tobytes())
        case _:
            return ""
    return digest.hexdigest()


def _symbol(content: _Content) -> str:
    digest, number = content
    return f"collage_shared_{digest[:24]}_{number}"
