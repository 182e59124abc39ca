"""The processes of a container node, as the host's /proc shows them.

Invariant: what a process names itself is no text and no line of its own. The name is any 15 bytes, of which the kernel
escapes only newline and backslash in `status`, so that is read as bytes, in lines that end with a newline.
"""

from __future__ import annotations

from pathlib import Path

from wherry.fabric.cgroup import Cgroup
from wherry.node.protocol import Placement

_SYN_RECEIVED, _LISTEN = "03", "0A"


def first_process(place: Placement) -> int | None:
    """PID on this machine of the node's first process; None when it has ended."""
    for pid in Cgroup(place.cgroup).pids():
        try:
            inside = namespace_pids(pid)
        except OSError:
            continue
        if len(inside) > 1 and inside[-1] == 1:
            return pid
    return None


def namespace_pids(pid: int) -> list[int]:
    """The PIDs of a process, or TIDs of a thread, from this machine's PID namespace to its own. OSError when it has
    ended."""
    for line in Path(f"/proc/{pid}/status").read_bytes().split(b"\n"):
        if line.startswith(b"NSpid:"):
            return [int(word) for word in line.split()[1:]]
    return [pid]


def is_rank(pid: int) -> bool:
    """True for an MPI rank: Open MPI's or MPICH's (PMI) rank variable is in its environment."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(entry.startswith((b"OMPI_COMM_WORLD_RANK=", b"PMI_RANK=")) for entry in environment)


def cpu_time(pid: int) -> int:
    """CPU time in nanoseconds (proc(5), schedstat); 0 for a process that ended."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0


def tracer_of(pid: int) -> int:
    """PID on this machine of the process that traces this one; 0 when there is none, or the process has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return 0
    return int(status.partition(b"\nTracerPid:")[2].partition(b"\n")[0])
