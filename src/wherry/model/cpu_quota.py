"""The limit of CPU time (CFS quota) that emulates the CPUs of a node or host."""

from __future__ import annotations

_HEAD_ROOM = 1.1


def cpu_quota(cpus: float, speed: float) -> float:
    """The limit for so many CPUs of a host of this speed, in CPUs of the machine.

    At speed 1 it is a tenth more than they are. A rank that polls uses a whole CPU, and the kernel charges it for its
    packets, too: with a quota of exactly one CPU it would be throttled for milliseconds. A slower host is emulated by
    its quota, which is exact.
    """
    return cpus * (_HEAD_ROOM if speed == 1 else speed)


def may_burst(speed: float) -> bool:
    """Whether the rest of one period's quota may be used in the next period.

    The kernel gives a CPU 5 ms of a quota at once. When a rank changes its CPU it leaves the rest behind, and is
    throttled until the period ends although it has used less than its quota; the rest of earlier periods prevents that.
    """
    return speed == 1
