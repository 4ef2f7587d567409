"""Declaration of an option: what a field of `Options` says beside its type and default.

The command line (`collage.cli.option_arguments`) and the wire form of a request
(`collage.pipeline.request.RequestOptions`) are made from these declarations.
"""

from collections.abc import Callable, Hashable, Sequence
from copy import copy
from dataclasses import KW_ONLY, Field, dataclass, field
from functools import partial
from typing import Any, Final, TypeVar, cast

T = TypeVar("T")

_KEY: Final = "declaration"


@dataclass(frozen=True)
class OptionDeclaration:
    """Declaration of one option.

    Attributes:
        flag: name on the command line, e.g. "--budget"; "": none. The flag of a field of type bool is a
            switch and sets the opposite of the default.
        help: help text of the command line; "{default}" stands for the default.
        metavar: placeholder of the value in the help; "": the choices, else the flag's name in capitals.
        parse: parser of the value's text; with `is_repeatable`, of the list of all texts.
        choices: allowed texts; empty: no limit.
        is_repeatable: whether the flag may be repeated.
        is_of_machine: whether requests lack the option: the request itself or the machine sets it.
        request_type: type in a request; None: the field's own.
        request_default: default in a request; None: the field's own.
    """

    flag: str = ""
    help: str = ""
    _: KW_ONLY
    metavar: str = ""
    parse: Callable[[Any], object] = str
    choices: Sequence[str] = ()
    is_repeatable: bool = False
    is_of_machine: bool = False
    request_type: Any = None
    request_default: object = None


def declare(default: T, flag: str = "", help: str = "", **details: Any) -> T:
    """Return a dataclass field that is an option; the type checker takes it for its default.

    Args:
        default: default of the field.
        flag: name on the command line.
        help: help text of the command line.
        details: further attributes of `OptionDeclaration`.
    """
    metadata = {_KEY: OptionDeclaration(flag, help, **details)}
    if isinstance(default, Hashable):
        return field(default=default, metadata=metadata)
    return cast(T, field(default_factory=partial(copy, default), metadata=metadata))


def declaration_of(option: Field[Any]) -> OptionDeclaration:
    """Return the declaration of a field. Raises KeyError for a field without one."""
    declaration: OptionDeclaration = option.metadata[_KEY]
    return declaration
