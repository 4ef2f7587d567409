"""The comparison of loops: every case is a model, and a row has both times."""

import onnx
import pytest

from benchmarks.loops import CASES, LoopCase, row
from collage.options import Options


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_case_is_a_valid_model(case):
    onnx.checker.check_model(case.model(), full_check=True)


@pytest.mark.full
def test_a_row_has_both_times_and_the_backends_of_the_body(tmp_path):
    case = LoopCase("tiny", "[4]", 3, "next = Tanh (state)")
    options = Options(
        backends=("tvm",), threads=1, cache_dir=tmp_path / "store", measure_budget_s=1, tune_s=0
    )
    name, turns, whole_us, driven_us, ratio, turn_us, backends = row(
        case, options, tmp_path, seconds=0.1
    ).split()
    assert (name, turns, backends) == ("tiny", "3", "tvm")
    assert float(ratio.rstrip("x")) == pytest.approx(float(whole_us) / float(driven_us), abs=0.2)
    assert float(turn_us) == pytest.approx(float(driven_us) / 3, abs=0.1)
