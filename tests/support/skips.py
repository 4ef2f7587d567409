"""Skipped tests in CI: one fails unless its reason is the hardware, the user or a check that is run apart.

Nobody reads what CI skips. Servers, tools and packages must be there, so a test that misses one fails.
"""

import os
import re

ALLOWED = re.compile(
    r"""
    no\ GPU$ | has\ a\ (real\ )?GPU | has\ a\ real\ one$       # tests of machines with and without one
    | ^not\ on\ this\ GPU:                                     # a toolchain that this GPU's machine lacks
    | this\ processor\ has\ neither | this\ machine\ has\ no   # instruction sets
    | make\ cuda-check\ installs | `make\ e2e`\ has            # run apart, since they are large
    | ^no\ images:
    | only\ root\ can | needs\ root\ and\ mount                # another user runs the tests
    | the\ file\ system\ of\ .*\ cannot
    | other\ versions\ of\ Python\ need
    | import\ removes\ it$                                     # nothing is left to be tested
    """,
    re.VERBOSE,
)
"""Reasons that hold in CI too."""


def failure_in_ci(reason: str) -> str:
    """Return why a skip fails, "" where it may be skipped: outside CI, or for a reason that is allowed."""
    reason = reason.removeprefix("Skipped: ")
    if not os.environ.get("CI") or ALLOWED.search(reason):
        return ""
    return f"skipped in CI: {reason}"
