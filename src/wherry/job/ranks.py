"""The ranks of jobs and their CPU times, as the kernel reports them: this machine's or a virtual machine's.

A rank is identified by two variables in its environment. Invariants: nothing in a node is stopped or changed; an
unreadable process does not count as a rank; data forged by a node's user affects only that user's ranks. In a virtual
machine the agent runs one short program as the node's user.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from wherry.job.agent_client import AgentEndpoint
from wherry.job.launcher_command import MARK
from wherry.model.owner import Owner

_TICK = 1.0 / os.sysconf("SC_CLK_TCK")
"""Seconds; 0.01 on every Linux that runs MPI, so also in a virtual machine."""
_RANK = re.compile(rb"(?:^|\0)(?:OMPI_COMM_WORLD_RANK|PMI_RANK|PMIX_RANK)=(\d{1,9})\0")
_JOB = re.compile(rf"(?:^|\0){MARK}=([^\0]*)\0".encode())
_FILES = ("environ", "stat", "schedstat")
_ASK = "exec grep -sHz '' " + " ".join(f"/proc/[0-9]*/{name}" for name in _FILES)
"""Prints every record of these files, prefixed by the file name and a colon."""
_RECORD = re.compile(rb"/proc/(\d{1,9})/(\w+):(.*)", re.DOTALL)
_COUNT = re.compile(r"\d{1,18}", re.ASCII)
"""A number of ticks or nanoseconds."""
RankId = tuple[str, int]
"""Job id and rank."""
Process = tuple[str, int]
"""PID namespace (a virtual machine's name; empty: this machine) and PID."""


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


def here(node: str, pids: Iterable[int], known: Mapping[Process, RankId]) -> dict[Process, Times]:
    """The ranks of `node` among these processes of this machine. Those already `known` are not identified again."""
    found = {}
    for pid in pids:
        try:
            rank_id = known.get(("", pid)) or _rank_id(Path(f"/proc/{pid}/environ").read_bytes())
            if rank_id:
                stat, sched = (Path(f"/proc/{pid}/{name}").read_text(errors="replace") for name in _FILES[1:])
                found["", pid] = _times(rank_id, node, stat, sched)
        except (OSError, ValueError, IndexError):  # it has ended
            continue
    return found


def inside(node: str, endpoint: AgentEndpoint, owner: Owner, seconds: float) -> dict[Process, Times]:
    """The ranks in a virtual machine, from its agent. AgentError when it does not answer within `seconds`."""
    ended = endpoint.run(["/bin/sh", "-c", _ASK], owner, {"PATH": "/usr/bin:/bin"}, seconds)
    return read(node, ended.stdout)


def read(node: str, text: bytes) -> dict[Process, Times]:
    """The ranks in the agent's output; processes with incomplete data are omitted."""
    told: defaultdict[int, defaultdict[str, bytes]] = defaultdict(lambda: defaultdict(bytes))
    for record in text.split(b"\0"):
        if match := _RECORD.match(record.lstrip(b"\n")):
            told[int(match[1])][match[2].decode()] += match[3] + b"\0"
    found = {}
    for pid, files in told.items():
        rank_id = _rank_id(files["environ"])
        stat, sched = (files[name].decode(errors="replace").strip("\0\n") for name in _FILES[1:])
        with contextlib.suppress(ValueError, IndexError):  # cut off, or it ended meanwhile
            if rank_id:
                found[node, pid] = _times(rank_id, node, stat, sched)
    return found


def _rank_id(environ: bytes) -> RankId | None:
    """Job and rank of a process, from its environment; None when it is not a rank."""
    job, rank = _JOB.search(environ + b"\0"), _RANK.search(environ + b"\0")
    return (job[1].decode(errors="replace"), int(rank[1])) if job and rank else None


def _times(rank_id: RankId, node: str, stat: str, schedstat: str) -> Times:
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
