"""A process that ends with the one that started it, and takes along what it started itself."""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Ask the kernel to end this process with its parent; leave at once if that is gone already."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the parent has gone")


def end_group_with_me() -> None:
    """Have what this leader of a process group starts end with it, however it ends.

    The kernel tells a process that its parent has ended, not that its grandparent has. A fork that does
    nothing else waits for the end of this process and then kills the group: compilers, and itself.
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
