"""Build one engine: `python -m collage.backends.nvidia.tensorrt.build PARENT`, a blob on standard input.

Whether TensorRT may round float32 to TF32 is said by a variable of the environment, and other libraries of
NVIDIA read it too, some once and for all. So an engine is built in a process of its own: what that
process may do says nothing about the one that asked for it, which goes on to measure other kernels.
"""

import os
import subprocess
import sys

from collage.backends.nvidia.libraries import CUDART, TENSORRT
from collage.backends.nvidia.toolchain import tell_plugin
from collage.errors import BackendError
from collage.runtime.child import die_with_parent
from collage.runtime.child_environment import child_environment
from collage.runtime.plugin import FULL_PRECISION, library_environment

KIND = "tensorrt"


def build(blob: bytes, *, rounds: bool) -> None:
    """Have an engine built and left where the blob's options say.

    Args:
        blob: of a kernel whose model is the region's own.
        rounds: float32 may be rounded to TF32.

    Raises:
        RuntimeError: TensorRT refuses the region, in its own words, or the process ended.
    """
    done = subprocess.run(
        [sys.executable, "-m", "collage.backends.nvidia.tensorrt.build", str(os.getpid())],
        input=blob,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
        env={
            **child_environment(),
            **library_environment(),
            **({} if rounds else FULL_PRECISION),
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        },
    )
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip().splitlines()
        raise RuntimeError(words[-1] if words else f"building ended with {done.returncode}")


def main() -> int:
    import tvm_ffi

    die_with_parent(int(sys.argv[1]))
    blob = sys.stdin.buffer.read()
    try:
        tell_plugin("cudart", CUDART)
        tell_plugin("nvinfer", TENSORRT)
        tvm_ffi.get_global_func("collage.try_session")(KIND, blob)
    except (BackendError, RuntimeError) as error:
        print((str(error).strip() or type(error).__name__).splitlines()[0], file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
