"""Every exception that Collage raises on purpose.

    CollageError
    ├── InputError            what the user gave cannot be used              exit code 2
    │   ├── ModelError        not an ONNX model, truncated, data missing
    │   ├── DimensionError    an unbound, unknown or contradictory dimension
    │   └── OptionError       an unknown backend, a bad value
    ├── BackendError          a backend is unavailable or refused a region
    ├── MeasureError          no measurement is possible at all              exit code 3
    │   ├── ClusterError      Kubernetes refuses, or a Job failed as a whole
    │   │   └── GivenUpError  a Job could not start, or waited or ran for too long
    │   └── LimitError        a limit of cost is reached: nothing more is measured
    ├── SearchError           no partitioning covers the function            exit code 3
    ├── GateError             the executable is wrong: nothing is written    exit code 4
    │   └── UnprovenError     right, but slower than a framework or not proven to be as fast
    ├── BundleError           a bundle cannot be written, is changed or unfit  exit code 5
    ├── StoreError            the store cannot be read or written            exit code 6
    │   ├── DamagedError      what is stored is not what was stored
    │   └── RetainedError     a retention rule of the storage keeps an object
    ├── RegistryError         the model registry cannot be read or written   exit code 7
    └── RequirementError      right, but not what the command line requires  exit code 8

A candidate that does not compile, crashes or computes other numbers is not an exception: it is an
invalid `Cost` with its reason.
"""

from collections.abc import Mapping
from types import MappingProxyType

INTERRUPTED = 130

EXIT_CODES: Mapping[int, str] = MappingProxyType(
    {
        0: "done",
        1: "unexpected, or a check of `collage doctor` failed",
        2: "bad input or option: the message says what to do",
        3: "nothing could be measured, or no plan covers the model",
        4: "the gate refused the executable, and nothing was written; or a bundle that the gate has not"
        " passed was to be published or served",
        5: "the bundle cannot be written, or is incomplete, changed, or made for another processor or"
        " library version",
        6: "the store cannot be read or written",
        7: "the model registry does not answer or refuses",
        8: "the result is in place, but is not what --require-speedup or --fail-slower asks for",
        INTERRUPTED: "interrupted: what was measured is kept",
    }
)
"""What the command line's exit codes mean; `collage --help` and README.md show this table."""


class CollageError(Exception):
    """Base of all; `exit_code` is what the command line returns.

    A message says what happened, then what to do, behind the first semicolon that is in no brackets.
    """

    exit_code = 1
    usual_advice = "run `collage doctor`: it tells what this machine lacks"
    """What to do where the message does not say it."""

    @property
    def reason(self) -> str:
        """The first part of the message: what happened."""
        return _halves(str(self))[0]

    @property
    def advice(self) -> str:
        """The second part: what to do."""
        return _halves(str(self))[1] or self.usual_advice


def _halves(message: str) -> tuple[str, str]:
    """Split a message at the first semicolon outside of brackets and quotes.

    >>> _halves("m.onnx: not an ONNX model (a; b); export it again")
    ('m.onnx: not an ONNX model (a; b)', 'export it again')
    >>> _halves("no plan covers node 3")
    ('no plan covers node 3', '')
    """
    depth, quoted = 0, False
    for place, letter in enumerate(message):
        depth += (letter in "([{") - (letter in ")]}")
        quoted ^= letter == "`"
        if letter == ";" and depth <= 0 and not quoted:
            return message[:place].strip(), message[place + 1 :].strip()
    return message.strip(), ""


class InputError(CollageError):
    exit_code = 2
    usual_advice = "`collage --help` tells what can be given"


class ModelError(InputError):
    usual_advice = "export the model again, with shapes and operators that ONNX Runtime runs"


class DimensionError(InputError):
    """A dimension is unbound, unknown or contradictory.

    Attributes:
        missing: options that bind the unbound dimensions, with 1 for each unknown size; empty where none is
            unbound.
    """

    def __init__(
        self, message: str, missing: Mapping[str, Mapping[str, object]] = MappingProxyType({})
    ) -> None:
        super().__init__(message)
        self.missing = missing


class OptionError(InputError):
    pass


class BackendError(CollageError):
    pass


class MeasureError(CollageError):
    exit_code = 3


class ClusterError(MeasureError):
    pass


class GivenUpError(ClusterError):
    pass


class LimitError(MeasureError):
    """A limit of cost is reached.

    Attributes:
        is_daily: whether it is a limit of a day, after which a repetition may succeed.
    """

    def __init__(self, message: str, is_daily: bool = False) -> None:
        super().__init__(message)
        self.is_daily = is_daily


class SearchError(CollageError):
    exit_code = 3
    usual_advice = "`collage candidates MODEL` lists what each backend takes, and why not the rest"


class GateError(CollageError):
    exit_code = 4
    usual_advice = (
        "nothing was written; compile with other --backends, or with more time (--verify)"
    )


class UnprovenError(GateError):
    pass


class BundleError(CollageError):
    exit_code = 5
    usual_advice = "fetch or compile the bundle again, on a machine like the one that serves it"


class StoreError(CollageError):
    exit_code = 6
    usual_advice = (
        "`collage doctor --store STORE` checks the address, the credentials and the network"
    )


class DamagedError(StoreError):
    pass


class RetainedError(StoreError):
    pass


class RegistryError(CollageError):
    exit_code = 7
    usual_advice = "check the registry's address, the credentials and the network"


class RequirementError(CollageError):
    exit_code = 8
    usual_advice = "`collage explain BUNDLE` tells why each region runs where it does"
