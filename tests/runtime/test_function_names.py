import pytest

from collage.runtime.function_names import function_name, function_names


@pytest.mark.parametrize(
    ("shape_sets", "names"),
    [(0, ("main",)), (1, ("main",)), (3, ("main", "main_1", "main_2"))],
)
def test_each_shape_set_is_a_function(shape_sets, names):
    assert function_names(shape_sets) == names


def test_functions_of_an_entry_are_identifiers():
    assert function_names(2, "decoder-with.past") == ("decoder_with_past", "decoder_with_past_1")
    assert function_name(0, "größe") == "gr__e"
