"""Names of a model's functions: one function for each shape set."""

MAIN = "main"
"""Name of the first function."""


def function_name(number: int) -> str:
    """Return the name of the function of shape set `number`, from 0."""
    return f"{MAIN}_{number}" if number else MAIN


def function_names(shape_sets: int) -> tuple[str, ...]:
    """Return the names of all functions; a model without shape sets has one function.

    >>> function_names(0), function_names(3)
    (('main',), ('main', 'main_1', 'main_2'))
    """
    return tuple(function_name(number) for number in range(max(1, shape_sets)))
