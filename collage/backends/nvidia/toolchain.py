"""The base of the backends that compile for a GPU of NVIDIA."""

from collections.abc import Sequence

from collage.backends.base import Availability, Backend
from collage.backends.nvidia.libraries import Need, cuda_availability, open_library
from collage.errors import BackendError
from collage.runtime.blob import pack
from collage.runtime.plugin import library_reason, load_plugin


class CudaBackend(Backend):
    """Says what is missing, all of it at once: driver, libraries, and what a subclass adds."""

    device = "cuda"
    needs: tuple[Need, ...] = ()
    kind = ""
    """Kind of the plug-in's kernel, "" for toolchains that need none."""

    def availability(self) -> Availability:
        plugin = [plugin_availability(self.kind)] if self.kind else []
        return cuda_availability(self.needs, [*self.further(), *plugin])

    def further(self) -> Sequence[Availability]:
        """What is needed beside libraries."""
        return ()


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
