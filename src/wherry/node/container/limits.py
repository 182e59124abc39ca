"""Limits of a node's processes: those of setrlimit(2), which are the daemon's less the needs of a move, and those of
the node's cgroup, which a move lifts."""

from __future__ import annotations

from wherry.base import open_files as our_open_files
from wherry.fabric.cgroup import Cgroup
from wherry.node.container.criu.engine import CPU
from wherry.node.protocol import Placement

_CRIU = 1024
"""Descriptors behind those of a program that a restore needs: CRIU has some thirty of its own for each table of
descriptors, and rounds. A program may have descriptors at the very end, as valgrind has."""
_MIN_LIMIT = 4096
"""A limit below this is left as it is."""


def open_files() -> list[dict[str, object]]:
    """The limit on open files, as OCI's runtime configuration has it."""
    soft, hard = our_open_files.limits()
    if hard < _MIN_LIMIT:
        return []
    hard -= _CRIU
    return [{"type": "RLIMIT_NOFILE", "soft": min(soft, hard), "hard": hard}]


def restore_limits(placement: Placement) -> None:
    """Restores the limits of a running node, which were lifted during the move."""
    group = Cgroup(placement.cgroup)
    if group.pids():
        group.gather(CPU)
        group.limit(placement.quota, placement.node.memory, burst=placement.burst)
        group.weight(placement.cpus)
        group.weigh_parent()
