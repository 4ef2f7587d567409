"""The base of the backends that compile for a GPU of NVIDIA.

Where the user allows less than float32, tensor cores may round the factors of a product to TF32: 10 bits of
fraction in place of 23, the exponents of float32, sums in float32. A toolchain that can do so has a reduced
variant for each of its own; all of them compute in `TF32`, on regions whose products are in float32.
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
"""What a reduced variant computes in, and the beginning of its name."""


def with_tf32(variants: Iterable[str]) -> Mapping[str, str]:
    """Return the reduced variants that belong to those in full precision, as `Backend.reduced` has them.

    >>> dict(with_tf32(["", "heuristic-2"]))
    {'tf32': 'tf32', 'tf32-heuristic-2': 'tf32'}
    """
    return MappingProxyType({"-".join(filter(None, (TF32, one))): TF32 for one in variants})


class CudaBackend(Backend):
    """Says what is missing, all of it at once: driver, libraries, and what a subclass adds."""

    device = "cuda"
    needs: tuple[Need, ...] = ()
    kind = ""
    """Kind of the plug-in's kernel, "" for toolchains that need none."""

    def availability(self) -> Availability:
        return cuda_availability(self.needs, [*self._beside(), *self.compilers()])

    def building(self) -> Availability:
        """No driver, no library and no GPU are needed to build: only the compilers are."""
        return joined(self.compilers())

    def running(self) -> Availability:
        return cuda_availability(self.needs, self._beside())

    def reduced_reason(self) -> str:
        return tf32_reason() if self.reduced else ""

    def read_variant(self, variant: str) -> tuple[str, bool]:
        """Return the variant of full precision that it is or belongs to, and whether it computes in TF32.

        Raises:
            BackendError: there is none of that name, or this GPU has no TF32.
        """
        if variant in self.variants:
            return variant, False
        if variant not in self.reduced:
            raise BackendError(f"{self.name} has no variant {variant!r}")
        if reason := tf32_reason():
            raise BackendError(f"{self.name} has no TF32 here: {reason}")
        return variant.removeprefix(TF32).removeprefix("-"), True

    def further(self) -> Sequence[Availability]:
        """What kernels need beside libraries to run."""
        return ()

    def compilers(self) -> Sequence[Availability]:
        """What building kernels needs."""
        return ()

    def _beside(self) -> Sequence[Availability]:
        return [*self.further(), *([plugin_availability(self.kind)] if self.kind else [])]


def joined(parts: Sequence[Availability]) -> Availability:
    """Return what several parts say together: all reasons, or all libraries."""
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


def tell_plugin(name: str, need: Need) -> None:
    """Tell the plug-in where library `name` is, where no wheel of that name has it (a CUDA toolkit)."""
    import tvm_ffi

    load_plugin()
    if library_reason(name) and (path := open_library(need).path):
        tvm_ffi.get_global_func("collage.set_library")(name, path)
