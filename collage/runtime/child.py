"""Child processes that end with their parent, together with their own children."""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Ask the operating system to end this process with its parent; exit if the parent is gone already."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the parent has gone")


def end_group_with_me() -> None:
    """End the process group of this leader together with it, for any kind of exit.

    The operating system notifies a process of the end of its parent, but not of its grandparent. So an
    otherwise idle fork waits for the end of this process and then kills the group: compilers, and itself.
    """
    prctl, leader = ctypes.CDLL(None).prctl, os.getpid()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    if os.fork():
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        return
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    os.closerange(0, 1 << 16)
    if os.getppid() == leader:
        signal.sigwait({signal.SIGTERM})
    os.killpg(leader, signal.SIGKILL)
