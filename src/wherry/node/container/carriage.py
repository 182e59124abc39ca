"""How many connections carry a container's memory.

Each has a sending thread at the source and a receiving one at the destination. Processors are counted on this machine,
which all emulated hosts share.
"""

from __future__ import annotations

import os

MAX_CONNECTIONS = 16
"""STREAM_CONNECTIONS_MAX of native/pager/stream.h."""
_ENOUGH = 4
_CARRIES = 4e9
"""Bit/s that one connection carries with a processor at each end."""


def connections(wanted: int, rate: float | None, processors: int | None = None) -> int:
    """As many as are `wanted`; 0: as many as pay at `rate` bit/s (None: unlimited).

    One, where it fills the path; else one for two processors, so that half of them are left to the nodes.
    """
    if wanted:
        return min(wanted, MAX_CONNECTIONS)
    if rate is not None and rate <= _CARRIES:
        return 1
    return max(1, min(_ENOUGH, (processors or os.cpu_count() or 1) // 2))
