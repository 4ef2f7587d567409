"""Base class of the backends for NVIDIA GPUs, and TF32.

With reduced precision allowed, tensor cores round the factors of a product to TF32: 10 bits of fraction in
place of 23, the exponents of float32, sums in float32. A toolchain with TF32 has a reduced variant for each
full-precision variant; they apply to regions with float32 products.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from collage.backends.base import Availability, Backend
from collage.backends.nvidia.architecture import tf32_reason
from collage.backends.nvidia.libraries import Need, cuda_availability, open_library
from collage.errors import BackendError
from collage.runtime.blob import pack
from collage.runtime.plugin import library_reason, load_plugin

TF32 = "tf32"
"""Precision of the reduced variants, and prefix of their names."""


def with_tf32(variants: Iterable[str]) -> Mapping[str, str]:
    """Return the reduced variants of full-precision `variants`, in the form of `Backend.reduced`.

    >>> dict(with_tf32(["", "heuristic-2"]))
    {'tf32': 'tf32', 'tf32-heuristic-2': 'tf32'}
    """
    return MappingProxyType({"-".join(filter(None, (TF32, variant))): TF32 for variant in variants})


class CudaBackend(Backend):
    """A backend for NVIDIA GPUs; its reason lists everything missing at once.

    Attributes:
        needs: shared libraries of the toolchain.
        kind: kind of the plug-in's kernel, "" for toolchains without one.
    """

    device = "cuda"
    needs: tuple[Need, ...] = ()
    kind = ""

    def availability(self) -> Availability:
        return cuda_availability(self.needs, [*self._runtime_parts(), *self.compilers()])

    def building(self) -> Availability:
        """Builds need the compilers only: no driver, no library and no GPU."""
        return joined(self.compilers())

    def running(self) -> Availability:
        return cuda_availability(self.needs, self._runtime_parts())

    def reduced_reason(self) -> str:
        return tf32_reason() if self.reduced else ""

    def read_variant(self, variant: str) -> tuple[str, bool]:
        """Return the full-precision variant of `variant`, and whether it computes in TF32.

        Raises:
            BackendError: the name is unknown, or this GPU has no TF32.
        """
        if variant in self.variants:
            return variant, False
        if variant not in self.reduced:
            raise BackendError(f"{self.name} has no variant {variant!r}")
        if reason := tf32_reason():
            raise BackendError(f"{self.name} has no TF32 here: {reason}")
        return variant.removeprefix(TF32).removeprefix("-"), True

    def runtime_requirements(self) -> Sequence[Availability]:
        """Return run-time requirements beside libraries."""
        return ()

    def compilers(self) -> Sequence[Availability]:
        """Return the compilers for kernels."""
        return ()

    def _runtime_parts(self) -> Sequence[Availability]:
        return [
            *self.runtime_requirements(),
            *([plugin_availability(self.kind)] if self.kind else []),
        ]


def joined(parts: Sequence[Availability]) -> Availability:
    """Return the union of several parts: all reasons, or all libraries."""
    if reason := "; ".join(part.reason for part in parts if part.reason):
        return Availability(reason)
    return Availability(
        "", {name: version for part in parts for name, version in part.libraries.items()}
    )


def plugin_availability(kind: str) -> Availability:
    """Tell whether this build of the plug-in has kernels of `kind`."""
    import tvm_ffi

    try:
        load_plugin()
        tvm_ffi.get_global_func("collage.create_module")(kind, "probe", pack({}, []))
    except BackendError as error:
        return Availability(str(error))
    except (ValueError, RuntimeError) as error:
        if "no kernel of kind" in str(error):
            return Availability(f"this build of the plug-in has no {kind} kernels")
    return Availability("")


def register_with_plugin(name: str, need: Need) -> None:
    """Set the plug-in's path of library `name` if no wheel has it (a CUDA toolkit)."""
    import tvm_ffi

    load_plugin()
    if library_reason(name) and (path := open_library(need).path):
        tvm_ffi.get_global_func("collage.set_library")(name, path)
