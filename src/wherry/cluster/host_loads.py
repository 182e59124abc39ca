"""CPUs in use on each host: of its nodes and everything else on it (`HostCounters.used_since`).

Invariants: reads only. A host without counters (a real or only planned one), or a silent one, is left out, not taken
for idle. No lock is held while hosts are asked.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping

from wherry.fabric.ask_hosts import ask_hosts
from wherry.fabric.host_counters import HostCounters
from wherry.fabric.protocol import Fabric

_SECONDS = 0.2
"""Length of a measurement at least: 40 periods of the CPU limits."""
_FRESH = 5.0
"""Seconds for which a measurement is used again, as a command plans twice: before its operation and in it."""
_MAX_PERIOD = 15.0
"""Seconds over which the load is taken at most: since the last measurement, when that is not longer ago."""
_Counters = tuple[float, Mapping[str, HostCounters]]
"""When they were read, and those of each host that reported."""


class HostLoads:
    """The loads of a fabric's hosts. Safe from several threads."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._lock = threading.Lock()
        self._last: _Counters = (-math.inf, {})
        self._found: Mapping[str, float] = {}

    def __call__(self) -> Mapping[str, float]:
        """CPUs in use, by host: since the last measurement, or for a fifth of a second, which is waited for."""
        if self._fabric.uncounted:
            return {}
        with self._lock:
            before = self._last
            if time.monotonic() - before[0] < _FRESH:
                return self._found
        after = self._read()
        if after[0] - before[0] > _MAX_PERIOD or not after[1].keys() <= before[1].keys():
            before = after
            if before[1]:
                time.sleep(_SECONDS)
                after = self._read()
        found = _loads(before[1], after[1])
        with self._lock:
            self._last, self._found = after, found
        return found

    def _read(self) -> _Counters:
        hosts = [host.name for host in self._fabric.spec.hosts]
        answers, _ = ask_hosts(hosts, self._fabric.counters)
        return time.monotonic(), answers


def _loads(before: Mapping[str, HostCounters], after: Mapping[str, HostCounters]) -> dict[str, float]:
    """Of hosts in both, without hosts whose clock or counter began anew."""
    used = {name: found.used_since(before[name]) for name, found in after.items() if name in before}
    return {name: cpus for name, cpus in used.items() if cpus is not None}
