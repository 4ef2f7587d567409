"""Environment variables of child processes that run code from models.

A kernel, a compiler or a model parser can read its environment, and a controller's environment has
passwords. So only variables for toolchains are passed on, by name. A name like a secret's is left out for
any prefix (`NVIDIA_API_KEY`). For a user's own toolchain, the variable COLLAGE_WORKER_ENV lists further
names, separated by commas.
"""

import os
import re
import sys
from collections.abc import Mapping

from collage.runtime.plugin import thread_environment

PASSED = "COLLAGE_WORKER_ENV"

_NAMES = frozenset({
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TERM", "TMPDIR", "TEMP", "TMP",
    "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR", "VIRTUAL_ENV",
    "LD_LIBRARY_PATH", "LD_PRELOAD", "LD_BIND_NOW", "GLIBC_TUNABLES", "CC", "CXX", "CPATH", "LIBRARY_PATH",
    "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX", "SOURCE_DATE_EPOCH",
    "COLLAGE_GPU_CAPABILITY", "COLLAGE_GPU_SHARING", "COLLAGE_ONEDNN_VERBOSE", "COLLAGE_POD",
    "COLLAGE_NODE",
})  # fmt: skip
_PREFIXES = (
    "LC_", "PYTHON", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "NUMEXPR_", "TVM_", "ORT_",
    "ONNX_", "OV_", "OPENVINO_", "ONEDNN_", "DNNL_", "CUDA_", "NVIDIA_", "NVCC_", "NVRTC_", "CUDNN_",
    "CUBLAS", "CUTLASS_", "TENSORRT_", "TRT_", "MALLOC_", "ASAN_", "UBSAN_", "TSAN_", "LSAN_",
    "COLLAGE_LIB_", "COLLAGE_IMPORT_",
)  # fmt: skip
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|APIKEY|API_KEY|PRIVATE|_KEY$|_AUTH")


def child_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables for a child process.

    >>> child_environment({"PATH": "/bin", "AWS_SECRET_ACCESS_KEY": "x", "NVIDIA_API_KEY": "y"})
    {'PATH': '/bin'}
    """
    variables = os.environ if environ is None else environ
    passed = {name.strip() for name in variables.get(PASSED, "").split(",")}
    return {
        name: value
        for name, value in variables.items()
        if name in passed or name == PASSED or _is_known(name)
    }


def python_environment(threads: int, scratch: str) -> dict[str, str]:
    """Return the variables for a Python child process, with this process's module path.

    Args:
        threads: number of threads of kernels, as in the deployment.
        scratch: folder of temporary files.
    """
    return {
        **child_environment(),
        **thread_environment(threads),
        "OPENBLAS_NUM_THREADS": "1",
        "TMPDIR": scratch,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }


def _is_known(name: str) -> bool:
    return (name in _NAMES or name.startswith(_PREFIXES)) and not _SECRET.search(name.upper())
