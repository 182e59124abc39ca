"""Why a move failed at a host that ran out of memory, in words for its user.

The kernel ends a process of the move then, and the first sign of it is a broken connection. Invariant: only counts of
the kernel are reported, so it is asked before the cgroups of the placement are removed.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from wherry.base.units import format_size
from wherry.fabric.cgroup import Cgroup
from wherry.node.protocol import Placement

_AT_LIMIT = 0.95
"""Share of its limit from which on it is the node's own limit that was reached."""


class Shortage(NamedTuple):
    """The memory that was asked of the host, and that it has; and what to type next."""

    text: str
    remedy: str


def memory_shortage(placement: Placement, pager: Cgroup) -> Shortage | None:
    """None when the kernel ended no process of the placement, nor the program in `pager`, for its memory."""
    node, own = placement.node, Cgroup(placement.cgroup)
    if not (own.out_of_memory() or pager.out_of_memory()):
        return None
    taken = own.memory_peak() + pager.memory_peak()
    asked = f"the move of {node.name} had taken {format_size(taken)} of up to {format_size(node.memory)}"
    if own.out_of_memory() and own.memory_peak() >= _AT_LIMIT * node.memory:
        remedy = f"give it more in the cluster's file (memory: …), wherry down {node.cluster}, wherry up FILE"
        return Shortage(f"{node.name} reached its limit of memory at host {placement.host}: {asked}", remedy)
    room = Cgroup(str(Path(placement.cgroup).parent)).memory_limit()
    has = f", and all its nodes together may take {format_size(room)}" if room else ""
    remedy = f"wherry host list shows who has room: wherry move {node.name} --to HOST"
    return Shortage(f"host {placement.host} ran out of memory: {asked}{has}", remedy)
