"""Every exception that Collage raises on purpose.

    CollageError
    ├── InputError            what the user gave cannot be used              exit code 2
    │   ├── ModelError        not an ONNX model, truncated, data missing
    │   ├── DimensionError    an unbound, unknown or contradictory dimension
    │   └── OptionError       an unknown backend, a bad value
    ├── BackendError          a backend is unavailable or refused a region
    ├── MeasureError          no measurement is possible at all              exit code 3
    │   └── ClusterError      Kubernetes refuses, or a Job failed as a whole
    ├── SearchError           no partitioning covers the function            exit code 3
    ├── GateError             the executable is wrong: nothing is published  exit code 4
    │   └── UnprovenError     right, but slower than a framework or not proven to be as fast
    ├── BundleError           a bundle cannot be written, is changed or unfit  exit code 5
    ├── StoreError            the store cannot be read or written            exit code 6
    │   └── DamagedError      what is stored is not what was stored
    └── RegistryError         the model registry cannot be read or written   exit code 7

A candidate that does not compile, crashes or computes other numbers is not an exception: it is an
invalid `Cost` with its reason.
"""


class CollageError(Exception):
    """Base of all; `exit_code` is what the command line returns."""

    exit_code = 1


class InputError(CollageError):
    exit_code = 2


class ModelError(InputError):
    pass


class DimensionError(InputError):
    pass


class OptionError(InputError):
    pass


class BackendError(CollageError):
    pass


class MeasureError(CollageError):
    exit_code = 3


class ClusterError(MeasureError):
    pass


class SearchError(CollageError):
    exit_code = 3


class GateError(CollageError):
    exit_code = 4


class UnprovenError(GateError):
    pass


class BundleError(CollageError):
    exit_code = 5


class StoreError(CollageError):
    exit_code = 6


class DamagedError(StoreError):
    pass


class RegistryError(CollageError):
    exit_code = 7
