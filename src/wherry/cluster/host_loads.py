"""CPUs in use on each host, from the CPU time of its cgroup: of its nodes and everything else on it.

Invariants: reads only. A host without counters (a real or only planned one) is left out, not taken for
idle.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping

from wherry.fabric.cgroup import Cgroup
from wherry.fabric.protocol import Fabric

_SECONDS = 0.2
"""Length of a measurement at least: 40 periods of the CPU limits."""
_FRESH = 5.0
"""Seconds for which a measurement is used again, as a command plans twice: before its operation and in it."""
_MAX_PERIOD = 15.0
"""Seconds over which the load is taken at most: since the last measurement, when that is not longer ago."""
_Counters = tuple[float, Mapping[str, float]]
"""When they were read, and the CPU seconds of each host."""


class HostLoads:
    """The loads of a fabric's hosts. Safe from several threads."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._lock = threading.Lock()
        self._last: _Counters = (-math.inf, {})
        self._found: dict[str, float] = {}

    def __call__(self) -> Mapping[str, float]:
        """CPUs in use, by host: since the last measurement, or for a fifth of a second, which is waited for."""
        if self._fabric.uncounted:
            return {}
        with self._lock:
            before = self._last
            if time.monotonic() - before[0] < _FRESH:
                return self._found
            after = self._read()
            if after[0] - before[0] > _MAX_PERIOD or after[1].keys() != before[1].keys():
                before = after
                if before[1]:
                    time.sleep(_SECONDS)
                    after = self._read()
            seconds = after[0] - before[0]
            self._found = {
                name: max(0.0, used - before[1][name]) / seconds for name, used in after[1].items() if name in before[1]
            }
            self._last = after
            return self._found

    def _read(self) -> _Counters:
        groups = {host.name: Cgroup(self._fabric.cgroup(host.name)) for host in self._fabric.spec.hosts}
        counters = {name: group.cpu_seconds() for name, group in groups.items() if group.exists()}
        return time.monotonic(), counters
