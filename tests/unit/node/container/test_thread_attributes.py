"""Attributes of a thread that CRIU does not restore are read as somebody set them, whatever the nice value."""

from __future__ import annotations

import ctypes
import os
import subprocess

import pytest

from wherry.node.container import thread_attributes

BEST_EFFORT_6 = 2 << 13 | 6
_SET, _PROCESS = 251, 1


@pytest.mark.parametrize("nice", [0, 10])
@pytest.mark.parametrize("set_to", [0, BEST_EFFORT_6])
def test_an_io_priority_is_told_when_it_was_set(nice: int, set_to: int) -> None:
    """A nice value of 10 also leads to the priority 6 of best effort."""
    process = subprocess.Popen(["sleep", "60"])
    try:
        os.setpriority(os.PRIO_PROCESS, process.pid, max(nice, os.getpriority(os.PRIO_PROCESS, 0)))
        assert ctypes.CDLL(None).syscall(_SET, _PROCESS, process.pid, set_to) == 0
        if thread_attributes._tells_what_follows():
            pytest.skip("this kernel does not tell what was set from what follows")
        assert thread_attributes.read(process.pid).io_priority == set_to
    finally:
        process.kill()
        process.wait()
