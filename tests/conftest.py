"""Fixtures of all tests. A skipped test fails in CI, unless `tests.support.skips` allows the reason."""

import pytest

from tests.support.real_models import real_model
from tests.support.skips import failure_in_ci

__all__ = ["real_model"]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    fail_in_ci(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    fail_in_ci(report)
    return report


def fail_in_ci(report):
    """Let a skipped test or module fail where its reason is not allowed; an expected failure is no skip."""
    if report.outcome == "skipped" and not hasattr(report, "wasxfail"):
        _, _, reason = report.longrepr
        if failure := failure_in_ci(reason):
            report.outcome, report.longrepr = "failed", failure
