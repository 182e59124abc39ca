"""The ranks of jobs and their times, as the kernel that runs them tells: this machine's, or that of a virtual machine.

A rank is known by two variables in its environment. Invariants: nothing of a node is stopped or changed; who cannot be
read is no rank; whatever a node's user writes there, or has his machine tell, hides his own ranks at most. A virtual
machine's agent is asked as the node's user, for whom this is one short program.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from wherry.job.agent_client import AgentEndpoint
from wherry.job.launch import MARK
from wherry.model.owner import Owner

_TICK = 1.0 / os.sysconf("SC_CLK_TCK")
"""Seconds; 0.01 on every Linux that runs MPI, so also in a virtual machine."""
_RANK = re.compile(rb"(?:^|\0)(?:OMPI_COMM_WORLD_RANK|PMI_RANK|PMIX_RANK)=(\d{1,9})\0")
_JOB = re.compile(rf"(?:^|\0){MARK}=([^\0]*)\0".encode())
_FILES = ("environ", "stat", "schedstat")
_ASK = "exec grep -sHz '' " + " ".join(f"/proc/[0-9]*/{name}" for name in _FILES)
"""Every record of these files, each behind the file's name and a colon."""
_RECORD = re.compile(rb"/proc/(\d{1,9})/(\w+):(.*)", re.DOTALL)
_COUNT = re.compile(r"\d{1,18}", re.ASCII)
"""Of ticks or nanoseconds."""
Who = tuple[str, int]
"""Id of the job, and rank."""
Process = tuple[str, int]
"""Where its number holds (a virtual machine's name; empty: this machine), and the number."""


@dataclass(frozen=True)
class Times:
    """Seconds of a rank so far: in the program, in the kernel; of its main thread: running, ready but not running."""

    job: str
    rank: int
    node: str
    user: float
    system: float
    ran: float
    ready: float


def here(node: str, pids: Iterable[int], known: dict[Process, Who]) -> dict[Process, Times]:
    """The ranks among these processes of this machine, on `node`. Who is `known` already is not looked up again."""
    found = {}
    for pid in pids:
        try:
            who = known.get(("", pid)) or _who(Path(f"/proc/{pid}/environ").read_bytes())
            if who:
                stat, sched = (Path(f"/proc/{pid}/{name}").read_text(errors="replace") for name in _FILES[1:])
                found["", pid] = _times(who, node, stat, sched)
        except (OSError, ValueError, IndexError):  # it has ended
            continue
    return found


def inside(node: str, endpoint: AgentEndpoint, owner: Owner, seconds: float) -> dict[Process, Times]:
    """The ranks in a virtual machine, as its agent tells. WireError when it does not within so many seconds."""
    ended = endpoint.run(["/bin/sh", "-c", _ASK], owner, {"PATH": "/usr/bin:/bin"}, seconds)
    return read(node, ended.stdout)


def read(node: str, text: bytes) -> dict[Process, Times]:
    """The ranks in what the agent told; processes of which it told a part only are left out."""
    told: defaultdict[int, defaultdict[str, bytes]] = defaultdict(lambda: defaultdict(bytes))
    for record in text.split(b"\0"):
        if match := _RECORD.match(record.lstrip(b"\n")):
            told[int(match[1])][match[2].decode()] += match[3] + b"\0"
    found = {}
    for pid, files in told.items():
        who = _who(files["environ"])
        stat, sched = (files[name].decode(errors="replace").strip("\0\n") for name in _FILES[1:])
        with contextlib.suppress(ValueError, IndexError):  # cut off, or it ended meanwhile
            if who:
                found[node, pid] = _times(who, node, stat, sched)
    return found


def _who(environ: bytes) -> Who | None:
    """Job and rank of a process by its environment; None when it is no rank."""
    job, rank = _JOB.search(environ + b"\0"), _RANK.search(environ + b"\0")
    return (job[1].decode(errors="replace"), int(rank[1])) if job and rank else None


def _times(who: Who, node: str, stat: str, schedstat: str) -> Times:
    words = stat.rpartition(")")[2].split()
    ran, ready, *_ = schedstat.split()
    return Times(
        *who, node, _count(words[11]) * _TICK, _count(words[12]) * _TICK, _count(ran) / 1e9, _count(ready) / 1e9
    )


def _count(word: str) -> int:
    """A number of the kernel's. ValueError for what none of its counters can say."""
    if not _COUNT.fullmatch(word):
        raise ValueError(word)
    return int(word)
