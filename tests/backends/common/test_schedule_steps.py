"""Refused steps of a schedule are left out and logged."""

import logging

import pytest
import tvm
from tvm import s_tir, te

from collage.backends.common.tvm.schedule_steps import attempt, optional_step


@pytest.fixture
def plan():
    x = te.placeholder((4, 4), name="x")
    double = te.compute((4, 4), lambda i, j: x[i, j] * 2.0, name="double")
    return s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([x, double])}))


def fuse_loops(plan):
    plan.fuse(*plan.get_loops(plan.get_sblock("double")))


def fuse_and_refuse(plan):
    fuse_loops(plan)
    raise ValueError("this stage is no nest")


def test_a_refused_step_is_logged_with_its_reason(caplog):
    with caplog.at_level(logging.DEBUG), optional_step("move a stage"):
        raise ValueError("no such loop")
    assert "TVM refuses to move a stage: ValueError: no such loop" in caplog.text


def test_a_refused_rule_changes_nothing(plan, caplog):
    before = plan.mod.script()
    with caplog.at_level(logging.DEBUG):
        after = attempt(plan, fuse_and_refuse)
    assert after.mod.script() == before
    assert "fuse_and_refuse" in caplog.text


def test_an_accepted_rule_is_applied(plan):
    before = plan.mod.script()
    assert attempt(plan, fuse_loops).mod.script() != before
