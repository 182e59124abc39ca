"""Memory that processes share since a fork (copy-on-write): at the destination each process has a copy of its own.

The pager fills each restored process by itself, so a node with many forked workers needs more memory behind a move than
before it. A node for which that is too much is refused before anything is made: the kernel would kill a process there.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from wherry.base.errors import Code, Refused
from wherry.base.units import format_size
from wherry.fabric.cgroup import Cgroup

_VALUE = re.compile(r"^(RssAnon|Anonymous|Pss_Anon):\s+(\d+) kB$", re.MULTILINE)


def shared_by_fork(pids: list[int]) -> int:
    """Bytes by which the processes' memory grows when each gets a copy of the shared memory. Takes 9 ms for each GB."""
    return sum(
        max(0, values.get("Anonymous", 0) - values.get("Pss_Anon", values.get("Anonymous", 0)))
        for values in _values(pids, "smaps_rollup")
    )


def memory_obstacle(group: Cgroup, pids: list[int], limit: int | None) -> str:
    """Why a node with these processes would not fit into its memory of `limit` bytes after a move; empty when it
    would."""
    used = group.memory_used()
    if not limit or used + sum(values.get("RssAnon", 0) for values in _values(pids, "status")) <= limit:
        return ""  # also when all of it were shared
    shared = shared_by_fork(pids)
    if used + shared <= limit:
        return ""
    return (
        f"its processes share {format_size(shared)} of memory since a fork, of which each has a copy of its own after a"
        f" move: {format_size(used + shared)} in all, where the node may have {format_size(limit)}"
    )


def require_memory(group: Cgroup, pids: list[int], limit: int | None) -> None:
    """Refused when the node would not fit into its memory after a move."""
    if why := memory_obstacle(group, pids, limit):
        raise Refused(
            Code.NO_CAPACITY,
            "the node would need more memory after a move than it may have",
            why,
            "give the cluster's nodes more memory in its file, or wait until some of the processes have ended",
        )


def _values(pids: list[int], file: str) -> Iterator[dict[str, int]]:
    """Bytes by name, of each process."""
    for pid in pids:
        with contextlib.suppress(OSError):  # it ended
            text = Path(f"/proc/{pid}/{file}").read_text()
            yield {name: int(kib) << 10 for name, kib in _VALUE.findall(text)}
