"""The clocks of a node, which continue when it goes to another kernel.

CLOCK_MONOTONIC and CLOCK_BOOTTIME count from the boot of a kernel. A node has those of its host until it is moved to
another kernel; there it has a time namespace (time_namespaces(7)) whose clocks are ahead of the host's by as much as
makes them continue, and the downtime is in them. CRIU works inside that namespace at both hosts, so it sees no other
clocks than the node does, and it neither makes a time namespace nor shifts a time.

Nobody compares the clocks of two machines: the daemon asks either host for its own, and takes the time of each call.
The uncertainty of these is added, so a clock never goes back: it is ahead by the two round trips at most.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from wherry.node.container.host import HOSTS_OWN, Clocks, ClocksAhead

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_ASKED = 5
"""Calls of which the quickest one counts."""
_SECOND = 10**9
_NUMBERS = {"1": "monotonic", "7": "boottime"}
"""Older kernels name clocks by number in timens_offsets."""


@dataclass(frozen=True)
class Agreed:
    """How far the clocks of a node will be ahead of those of its destination, and whether that has another kernel."""

    ahead: ClocksAhead
    two_kernels: bool


@dataclass(frozen=True)
class Told:
    """A host's answer about its clocks, and the times of question and answer, in nanoseconds of the asker's clock."""

    clocks: Clocks
    asked: int
    answered: int

    def width(self) -> int:
        """How long the answer took, which is how precise it is."""
        return self.answered - self.asked


def agreed(source: Callable[[], Clocks], destination: Callable[[], Clocks]) -> Agreed:
    """How far the clocks of a node at the source have to be ahead of those of the destination to continue."""
    here, there = source(), destination()
    if here.boot == there.boot:
        return Agreed(here.ahead, two_kernels=False)
    quickest = (min((told(ask) for _ in range(_ASKED)), key=Told.width) for ask in (source, destination))
    return Agreed(carried(*quickest), two_kernels=True)


def told(ask: Callable[[], Clocks]) -> Told:
    """An answer, with the times of this process."""
    asked = time.monotonic_ns()
    return Told(ask(), asked, time.monotonic_ns())


def carried(source: Told, destination: Told) -> ClocksAhead:
    """The same by two answers: never less than is true, and at most the time more that the two calls took."""
    here, there = source.clocks, destination.clocks
    between = destination.answered - source.asked  # the longest time from one reading to the other
    return ClocksAhead(
        monotonic=here.monotonic + here.ahead.monotonic + between - there.monotonic,
        boottime=here.boottime + here.ahead.boottime + between - there.boottime,
    )


def of_host(pid: int | None) -> Clocks:
    """This machine's clocks now, and how far those of a process are ahead of them."""
    ahead = HOSTS_OWN if pid is None else of_process(pid)
    boottime, monotonic = time.clock_gettime_ns(time.CLOCK_BOOTTIME), time.monotonic_ns()
    return Clocks(boot(), monotonic, boottime, ahead)


def boot() -> str:
    """The boot of this machine's kernel, which hosts with one kernel have in common."""
    return _BOOT.read_text().strip()


def of_process(pid: int) -> ClocksAhead:
    """How far the clocks of a process are ahead of this machine's; not at all when it has ended, or when the kernel
    has no time namespaces."""
    if in_our_namespace(pid):
        return HOSTS_OWN
    with contextlib.suppress(OSError):
        return parsed(Path(f"/proc/{pid}/timens_offsets").read_text().splitlines())
    return HOSTS_OWN


def in_our_namespace(pid: int) -> bool:
    """True when a process has the clocks of this one; also when it has ended."""
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/time") == os.readlink("/proc/self/ns/time")
    return True


def supported() -> bool:
    """True when this kernel has time namespaces (Linux 5.6, CONFIG_TIME_NS)."""
    return os.path.exists("/proc/self/ns/time")


def parsed(lines: Iterable[str]) -> ClocksAhead:
    """The content of timens_offsets: a clock, seconds and nanoseconds in each line."""
    found = {}
    for line in lines:
        clock, seconds, nanoseconds = line.split()
        found[_NUMBERS.get(clock, clock)] = int(seconds) * _SECOND + int(nanoseconds)
    return ClocksAhead(found.get("monotonic", 0), found.get("boottime", 0))


def entered(pid: int | None) -> tuple[str, ...]:
    """Words for wherry-ns to run a program with the clocks of a process."""
    return () if pid is None or in_our_namespace(pid) else ("--time", f"/proc/{pid}/ns/time")


def made(ahead: ClocksAhead) -> tuple[str, ...]:
    """Words for wherry-ns to run a program with clocks that are so far ahead of this machine's."""
    return () if ahead == HOSTS_OWN else ("--clocks", f"{ahead.monotonic}:{ahead.boottime}")
