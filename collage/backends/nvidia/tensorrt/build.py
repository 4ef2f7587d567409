"""Build one engine: `python -m collage.backends.nvidia.tensorrt.build PARENT`, a blob on standard input.

An environment variable allows or forbids TF32 in TensorRT. Other NVIDIA libraries read it too, some only at
their start. So an engine is built in a process of its own: the setting does not affect other kernels in the
calling process.
"""

import os
import subprocess
import sys

from collage.backends.nvidia.libraries import CUDART, TENSORRT
from collage.backends.nvidia.toolchain import register_with_plugin
from collage.errors import BackendError
from collage.runtime.child import die_with_parent
from collage.runtime.child_environment import child_environment
from collage.runtime.plugin import FULL_PRECISION, library_environment

KIND = "tensorrt"


def build(blob: bytes, *, rounds: bool) -> None:
    """Build an engine in a child process; the blob's options name its file.

    Args:
        blob: blob of a kernel with the region's own model.
        rounds: whether TF32 is allowed for float32.

    Raises:
        RuntimeError: TensorRT refuses the region, with its own message, or the process ended.
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
        register_with_plugin("cudart", CUDART)
        register_with_plugin("nvinfer", TENSORRT)
        tvm_ffi.get_global_func("collage.try_session")(KIND, blob)
    except (BackendError, RuntimeError) as error:
        print((str(error).strip() or type(error).__name__).splitlines()[0], file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
