"""Names of a bundle's functions: one function for each entry and shape set.

A model in one file is the entry `main`. Several files are one entry each, with a name of its own. A body of
control flow is a function beside its caller.
"""

import re

MAIN = "main"
"""Name of the only entry of a model in one file, and of its first function."""


def function_name(number: int, entry: str = MAIN) -> str:
    """Return the name of an entry's function of shape set `number`, from 0: an identifier of C.

    >>> function_name(0, "decoder-with-past"), function_name(2, "decoder-with-past")
    ('decoder_with_past', 'decoder_with_past_2')
    """
    name = re.sub(r"\W", "_", entry, flags=re.ASCII)
    return f"{name}_{number}" if number else name


def function_names(shape_sets: int, entry: str = MAIN) -> tuple[str, ...]:
    """Return the names of an entry's functions; without shape sets there is one function.

    >>> function_names(0), function_names(3)
    (('main',), ('main', 'main_1', 'main_2'))
    """
    return tuple(function_name(number, entry) for number in range(max(1, shape_sets)))


def fallback_name(entry: str = MAIN) -> str:
    """Return the name of an entry's original model in golden data and in the gate's entries.

    >>> fallback_name(), fallback_name("encoder")
    ('fallback', 'fallback_of_encoder')
    """
    return "fallback" if entry == MAIN else f"fallback_of_{function_name(0, entry)}"


def body_name(caller: str, node: int, attribute: str) -> str:
    """Return the name of the function of a body: `attribute` of node number `node` of the caller.

    >>> body_name("main", 3, "then_branch")
    'main_3_then_branch'
    """
    return f"{caller}_{node}_{attribute}"
