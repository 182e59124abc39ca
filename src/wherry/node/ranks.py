"""The ranks of jobs on this machine and their CPU times, as the kernel reports them.

A rank is identified by two variables in its environment. Invariants: nothing in a node is stopped or changed; an
unreadable process does not count as a rank; data forged by a node's user affects only that user's ranks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

MARK = "WHERRY_JOB_ID"
"""Variable in the environment of every process of a job on a node, by which leftovers are found, too."""
FILES = ("environ", "stat", "schedstat")
"""Files of a process that are read."""
_TICK = 1.0 / os.sysconf("SC_CLK_TCK")
"""Seconds; 0.01 on every Linux that runs MPI, so also in a virtual machine."""
_RANK = re.compile(rb"(?:^|\0)(?:OMPI_COMM_WORLD_RANK|PMI_RANK|PMIX_RANK)=(\d{1,9})\0")
_JOB = re.compile(rf"(?:^|\0){MARK}=([^\0]*)\0".encode())
_COUNT = re.compile(r"\d{1,18}", re.ASCII)
"""A number of ticks or nanoseconds."""
RankId = tuple[str, int]
"""Job id and rank."""


@dataclass(frozen=True)
class Times:
    """Accumulated seconds of a rank: user and system time; of its main thread: running, and runnable but waiting."""

    job: str
    rank: int
    node: str
    user: float
    system: float
    ran: float
    ready: float


def here(node: str, pids: Iterable[int]) -> Iterator[tuple[int, Times]]:
    """The ranks of `node` among these processes of this machine."""
    for pid in pids:
        try:
            rank_id = identify(Path(f"/proc/{pid}/environ").read_bytes())
            if rank_id:
                stat, sched = (Path(f"/proc/{pid}/{name}").read_text(errors="replace") for name in FILES[1:])
                yield pid, times(rank_id, node, stat, sched)
        except (OSError, ValueError, IndexError):  # it has ended
            continue


def identify(environ: bytes) -> RankId | None:
    """Job and rank of a process, from its environment; None when it is not a rank."""
    job, rank = _JOB.search(environ + b"\0"), _RANK.search(environ + b"\0")
    return (job[1].decode(errors="replace"), int(rank[1])) if job and rank else None


def times(rank_id: RankId, node: str, stat: str, schedstat: str) -> Times:
    """The times in these files. ValueError or IndexError for incomplete ones."""
    words = stat.rpartition(")")[2].split()
    ran, ready, *_ = schedstat.split()
    return Times(
        *rank_id, node, _count(words[11]) * _TICK, _count(words[12]) * _TICK, _count(ran) / 1e9, _count(ready) / 1e9
    )


def _count(word: str) -> int:
    """A counter of the kernel. ValueError for anything else."""
    if not _COUNT.fullmatch(word):
        raise ValueError(word)
    return int(word)
