"""Name and compute capability of this machine's GPU, from its driver."""

import ctypes
import functools

from collage.errors import BackendError

CAPABILITY_MAJOR, CAPABILITY_MINOR = 75, 76
"""CUdevice_attribute."""
NAME_BYTES = 256


def open_driver() -> ctypes.CDLL:
    """Open NVIDIA's driver and start it.

    Raises:
        BackendError: there is no driver, or it offers no GPU.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise BackendError("no driver: libcuda.so.1 cannot be opened") from None
    if code := driver.cuInit(0):
        version = driver_version(driver)
        raise BackendError(f"the driver ({version}) offers no GPU: cuInit returned {code}")
    count = ctypes.c_int()
    driver.cuDeviceGetCount(ctypes.byref(count))
    if not count.value:
        raise BackendError(f"the driver ({driver_version(driver)}) sees no GPU")
    return driver


def driver_version(driver: ctypes.CDLL) -> str:
    """Return the CUDA version of the driver, e.g. "13.0"."""
    number = ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(number))
    return f"{number.value // 1000}.{number.value % 1000 // 10}"


@functools.cache
def compute_capability() -> str:
    """Return the compute capability of the first GPU, e.g. "90".

    Raises:
        BackendError: there is no driver, or it offers no GPU.
    """
    driver = open_driver()
    numbers = []
    for attribute in (CAPABILITY_MAJOR, CAPABILITY_MINOR):
        value = ctypes.c_int()
        if code := driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, 0):
            raise BackendError(f"the driver offers no GPU: an attribute gave error {code}")
        numbers.append(str(value.value))
    return "".join(numbers)


@functools.cache
def gpu_name() -> str:
    """Return the name of the first GPU, e.g. "NVIDIA H200".

    Raises:
        BackendError: there is no driver, or it offers no GPU.
    """
    text = ctypes.create_string_buffer(NAME_BYTES)
    if code := open_driver().cuDeviceGetName(text, NAME_BYTES, 0):
        raise BackendError(f"the driver offers no GPU: its name gave error {code}")
    return text.value.decode()


def gpu_problem(built_for: str) -> str:
    """Return the reason why kernels for the compute capability `built_for` cannot run here, or "".

    Machine code runs on GPUs of the same major version and an equal or higher minor version.
    """
    try:
        capability = compute_capability()
    except BackendError as error:
        return f"the bundle needs a GPU of NVIDIA: {error}"
    if capability[:-1] == built_for[:-1] and capability >= built_for:
        return ""
    return (
        f"the bundle was made for a GPU of compute capability {built_for}, and this one has {capability}: "
        "compile the model on this kind of machine"
    )
