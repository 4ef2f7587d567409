"""Whether TVM's package is installed; TVM itself is not imported."""

from importlib.metadata import PackageNotFoundError, version

from collage.backends.base import Availability


def tvm_availability() -> Availability:
    """Tell whether the package apache-tvm is installed, with its version."""
    try:
        return Availability("", {"apache-tvm": version("apache-tvm")})
    except PackageNotFoundError:
        return Availability("apache-tvm is not installed: pip install 'collage[compile]'")
