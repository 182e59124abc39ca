"""The limit of CPU time (CFS quota) that emulates the CPUs of a node or host."""

from __future__ import annotations

_HEAD_ROOM = 1.1


def cpu_quota(cpus: float, speed: float) -> float:
    """The limit for so many CPUs of a host of this speed, in CPUs of the machine.

    At speed 1 it is a tenth more than they are. A rank that polls uses a whole CPU, and the kernel charges it for its
    packets, too: with a quota of exactly one CPU it would stand for milliseconds. A slower host is emulated by its
    quota, which is exact.
    """
    return cpus * (_HEAD_ROOM if speed == 1 else speed)
