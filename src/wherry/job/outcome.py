"""How a job ended, and why: from the output of its launcher, and the kernel's counters of its nodes meanwhile.

The counters are a node's since it came to its host, so a job's are the differences to those at its start; those of a
node that was moved meanwhile begin at zero. Other jobs have processes on the same nodes: a process that was killed for
memory was this job's only when the launcher, or the exit code, shows that SIGKILL ended one of its own. A program that
exits with a code of its own has ended, not failed.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from wherry.base.units import format_duration
from wherry.fabric.cgroup import TASKS
from wherry.job.holder_files import Chunk
from wherry.model.records import Failure, Job, Node
from wherry.node.protocol import Usage

_FULL, _FULL_DISK = 64 << 10, 4 << 20
"""Free bytes below which a node's files count as full, and its disk: less than programs write at once. ext4 refuses all
of a write when it lacks room for some."""
_KILLED = 128 + signal.SIGKILL
"""Exit code of a shell, and so of a rank or a program that is one, whose child was killed."""
_MUCH = 8
"""Files that take at least 1/_MUCH of a node's memory are named as a reason that it is full."""
_IN_NAMESPACES = {"apptainer", "bwrap", "ch-run", "enroot", "podman", "singularity"}
"""Programs that run others in user namespaces of theirs."""
_OPENMPI = re.compile(
    r"process\s+rank\s+(\d{1,9})\s+with\s+PID\s+\d+\s+on\s+node\s+(\S+)\s+exited\s+on\s+signal\s+(\d{1,3})"
)
_MPICH = re.compile(r"=\s+PID \d+ RUNNING AT (\S+)\n=\s+EXIT CODE: (\d{1,9})\n")
_MPICH_SIGNAL = re.compile(r"EXIT STRING: .*\(signal (\d{1,3})\)")


class Counted(BaseModel):
    """A node's counters at the start of a job."""

    host: str
    oom_kills: int
    refused_tasks: int


@dataclass(frozen=True)
class Death:
    """A rank that a signal killed, as its launcher reports: its node's address (by Open MPI 5 its name) and, by Open
    MPI, its number. `sure`: not a rank that the launcher itself ended because of another one."""

    at: str
    signal: int
    rank: int | None = None
    sure: bool = True


@dataclass(frozen=True)
class End:
    """The state of a node at the end of a job. `usage` is None when it cannot be read."""

    node: Node
    alive: bool
    usage: Usage | None


def counted(usages: Mapping[str, tuple[str, Usage]]) -> str:
    """The text that `read_counted` reads, from host and usage by node."""
    rows = {
        name: Counted(host=host, oom_kills=usage.oom_kills, refused_tasks=usage.refused_tasks).model_dump()
        for name, (host, usage) in usages.items()
    }
    return json.dumps(rows)


def read_counted(file: Path) -> dict[str, Counted] | None:
    """The counters at the start of a job; None when they are not known."""
    try:
        return {name: Counted(**row) for name, row in json.loads(file.read_text()).items()}
    except (OSError, ValueError):
        return None


def death(chunks: Iterable[Chunk], code: int) -> Death | None:
    """The rank that a signal killed, by the launcher's last words, on whichever stream; `code` is its exit code."""
    text = "".join(data.decode(errors="replace") for _, _, data in sorted(chunks, key=lambda chunk: chunk[0]))
    if found := [*_OPENMPI.finditer(text)]:
        rank, at, number = found[-1].groups()
        return Death(at, int(number), int(rank))
    if not (blocks := [*_MPICH.finditer(text)]):
        return None
    address, said = blocks[-1].groups()
    named = _MPICH_SIGNAL.search(text, blocks[-1].end())
    if not named and int(said) == code:  # the program's own exit code
        return None
    number = int(named[1]) if named else int(said) & 127
    return Death(address, number, None, sure=number != signal.SIGKILL) if number else None


def failure(
    job: Job,
    code: int,
    ends: Sequence[End],
    before: Mapping[str, Counted] | None,
    killed: Death | None,
    lost: str,
    ran: float = 0.0,
) -> Failure | None:
    """Why the job failed, which ran for so many seconds; None for a program that ended by itself. `lost` is a node that
    was found lost meanwhile."""
    if not code:
        return None
    if job.timeout and ran >= job.timeout:
        return Failure(cause="timeout")
    if not lost:
        lost = next((end.node.name for end in ends if not end.alive), "")
    grown = {end.node.name: _grown(end, before) for end in ends}
    if lost:
        memory = next((end.node.memory for end in ends if end.node.name == lost and grown[lost][0]), None)
        return Failure(cause="node lost", node=lost, limit=memory)
    if Path(job.argv[0]).name in _IN_NAMESPACES and all(end.node.kind == "container" for end in ends):
        return Failure(cause="user namespaces")
    if job.kind == "exec" and code != _KILLED:
        return None
    node = next((end.node for end in ends if killed and killed.at in (end.node.address, end.node.name)), None)
    rank, number = (killed.rank, killed.signal) if killed else (None, None)
    if number == signal.SIGKILL or (number is None and code == _KILLED):
        for end in ends:
            if grown[end.node.name][0] and (node is None or node.name == end.node.name):
                files = (end.usage.files or 0) if end.usage else 0
                return Failure(
                    cause="memory", node=end.node.name, rank=rank, signal=number, limit=end.node.memory, files=files
                )
    for end in ends:
        if grown[end.node.name][1]:
            return Failure(cause="processes", node=end.node.name, rank=rank, signal=number, limit=TASKS)
    for end in ends:
        usage = end.usage
        if number is None and usage and usage.files is not None and usage.files_limit is not None:
            if usage.files_limit - usage.files < _FULL:
                return Failure(cause="files", node=end.node.name, limit=usage.files_limit, files=usage.files)
        if number is None and usage and usage.disk is not None and usage.disk_limit is not None:
            if usage.disk_limit - usage.disk < _FULL_DISK:
                return Failure(cause="disk", node=end.node.name, limit=usage.disk_limit, files=usage.disk)
    if killed and node:
        return Failure(cause="signal", node=node.name, rank=rank, signal=number, sure=killed.sure)
    return None


def explained(job: Job, found: Failure) -> tuple[str, str]:
    """The event that ended the job, and what to type next."""
    logs = f"wherry logs {job.cluster} --job {job.id}"
    again = f"then wherry down {job.cluster} and wherry up FILE"
    more = f"give it more in the cluster's file, for instance memory: {_size(2 * (found.limit or 0))}, {again}"
    victim = _victim(job, found)
    match found.cause:
        case "timeout":
            return f"it was ended after its time limit of {format_duration(job.timeout or 0)}", "a longer --timeout"
        case "node lost":
            why = f": it ran out of its {_size(found.limit)} of memory" if found.limit else ""
            remedy = more if found.limit else "wherry up FILE starts it again"
            return f"its node {found.node} was lost{why}", remedy
        case "user namespaces":
            return (
                f"{Path(job.argv[0]).name} makes a user namespace, which nodes that are containers refuse",
                "run the program itself, which sees what is installed here, or a cluster with kind: vm",
            )
        case "memory":
            share = f", of which files in its /tmp, /run and /dev/shm took {_size(found.files)}"
            text = f"node {found.node} ran out of memory: it has {_size(found.limit or 0)}"
            return f"{text}{share if found.files * _MUCH > (found.limit or 0) else ''}; {victim} was killed", more
        case "processes":
            text = f"node {found.node} reached the limit of {found.limit} processes and threads of a node"
            return text, f"start fewer of them, or raise nodes: in the cluster's file, {again}"
        case "files":
            text = f"the files of node {found.node} are full: its /tmp, /run and /dev/shm may have"
            return (
                f"{text} {_size(found.limit or 0)}, three quarters of its memory",
                f"write to a directory below your own, put /tmp on the host's disk (tmp: disk), or give it more in the "
                f"cluster's file (memory: …), {again}",
            )
        case "disk":
            text = f"the disk of node {found.node} for /tmp is full: it has {_size(found.limit or 0)}"
            larger = _size(2 * (found.limit or 0))
            return text, f"give it a larger one in the cluster's file, for instance tmp: {larger}, {again}"
        case _:
            return f"{victim} was killed", logs


def _size(size: int) -> str:
    """As in a cluster's file."""
    return f"{size >> 20}MiB"


def _victim(job: Job, found: Failure) -> str:
    """The rank that was killed, as exactly as it is known. Nodes that only may get spawned processes have no ranks."""
    spawned = bool(job.rank_nodes) and found.node in job.nodes and found.node not in job.rank_nodes
    if job.kind == "exec" or spawned:
        return f"a process on node {found.node}"
    name = f"rank {found.rank}" if found.rank is not None else _ranks_on(job, found.node)
    where = f"{name} on node {found.node}"
    if found.signal is None:
        return f"a process of {where}" if found.rank is None else where
    doubt = "" if found.sure else ", by which MPICH's launcher also ends the other ranks"
    try:
        return f"{where} (signal {found.signal}, {signal.Signals(found.signal).name}{doubt})"
    except ValueError:
        return f"{where} (signal {found.signal})"


def _ranks_on(job: Job, node: str) -> str:
    """`rank 2`, or `one of ranks 2 to 3`: without `rank_nodes`, ranks are in even blocks."""
    if node not in job.nodes:
        return "a rank"
    if job.rank_nodes:
        *others, rank = (str(rank) for rank, name in enumerate(job.rank_nodes) if name == node)
        return f"one of ranks {', '.join(others)} and {rank}" if others else f"rank {rank}"
    share, more = divmod(job.ranks, len(job.nodes))
    index = job.nodes.index(node)
    first = index * share + min(index, more)
    last = first + share + (index < more) - 1
    return f"rank {first}" if first == last else f"one of ranks {first} to {last}"


def _grown(end: End, before: Mapping[str, Counted] | None) -> tuple[bool, bool]:
    """Whether the node's memory, and its number of tasks, reached their limits since the start of the job."""
    if end.usage is None or before is None:
        return False, False
    old = before.get(end.node.name)
    kills, refused = (old.oom_kills, old.refused_tasks) if old and old.host == end.node.host else (0, 0)
    return end.usage.oom_kills > kills, end.usage.refused_tasks > refused
