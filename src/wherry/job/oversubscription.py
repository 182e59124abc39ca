"""How many ranks a node can have, and how many are too many to be quick.

Measured on a container: an idle rank takes 3.6 MiB and three tasks with Open MPI 4.1, 2.7 MiB and two tasks with MPICH
4.0. The bounds are below both, so that they refuse only jobs that could never start.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from wherry.base.errors import Code, Refused
from wherry.base.units import format_size
from wherry.fabric.cgroup import TASKS
from wherry.job.rank_map import RankMap, nodes_of
from wherry.model.records import Node

RANK_MEMORY = 5 << 19
"""Bytes that a rank takes at least."""
RANK_TASKS = 2
"""Processes and threads of a rank at least."""
_RANKS_PER_CPU = 4
"""Ranks for each CPU from which on the user is warned."""


def require_room(nodes: Sequence[Node], map_: RankMap) -> None:
    """Refused when a node has not the memory or the processes that its share of the ranks takes at least."""
    name, shares = nodes[0].cluster, Counter(node.name for node in map_)
    for node in nodes_of(map_):
        share = shares[node.name]
        most = min(node.memory // RANK_MEMORY, TASKS // RANK_TASKS)
        if share > most:
            lack = "memory" if most < TASKS // RANK_TASKS else "processes"
            has = format_size(node.memory) if lack == "memory" else f"{TASKS} processes and threads"
            why = f"{share} of them would run on {node.name}, which has {has}: {most} ranks at most"
            remedy = (
                f"wherry run {name} -n {most * len(nodes)} -- PROGRAM, or more nodes or memory in the cluster's file"
            )
            raise Refused(Code.NO_CAPACITY, f"{len(map_)} ranks do not fit on {name}", why, remedy)


def warning(nodes: Sequence[Node], ranks: int) -> str:
    """The text about ranks that take turns on too few CPUs; empty when they are not that many."""
    cpus = math.fsum(node.cpus for node in nodes)
    if ranks <= _RANKS_PER_CPU * max(cpus, 1):
        return ""
    return f"warning: {ranks} ranks share {cpus:g} CPUs, so they take turns, and each waits for the slowest"
