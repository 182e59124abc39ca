"""The processes of a container node, as the host's /proc shows them.

Invariant: the name that a process gives itself is no text and no line of its own. The name is any 15 bytes, of which
the kernel escapes only newline and backslash in `status`, so that is read as bytes, in lines that end with a newline.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from wherry.base.text import printable
from wherry.fabric.cgroup import Cgroup
from wherry.node.protocol import Placement

_SYN_RECEIVED, _LISTEN = "03", "0A"
_SYS_KCMP, _KCMP_FILE, _KCMP_VM = 312, 0, 1
"""linux/kcmp.h."""
_PF_EXITING = 0x4
"""linux/sched.h; field 9 of /proc/PID/stat, whose field 20 is the number of threads."""
_libc = ctypes.CDLL(None, use_errno=True)


def first_process(placement: Placement) -> int | None:
    """PID on this machine of the node's first process; None when it has ended."""
    for pid in Cgroup(placement.cgroup).pids():
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


def is_open_in(pids: Iterable[int], file: int) -> bool:
    """True when one of these processes holds the open file of a descriptor of ours, too."""
    target = os.readlink(f"/proc/self/fd/{file}")
    for pid in pids:
        with contextlib.suppress(OSError):  # it ended
            for name in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):  # it was closed
                    similar = os.readlink(f"/proc/{pid}/fd/{name}") == target
                    if similar and not _libc.syscall(_SYS_KCMP, os.getpid(), pid, _KCMP_FILE, file, int(name)):
                        return True
    return False


def is_dying(pid: int) -> bool:
    """True for a process that has ended, or has SIGKILL pending: a frozen one gets it when it is thawed (cgroup v1). A
    namespace's first process is exiting for as long as one of the others is."""
    try:
        status = Path(f"/proc/{pid}/status").read_bytes()
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return True
    if int(status.partition(b"\nSigPnd:")[2].partition(b"\n")[0], 16) >> (signal.SIGKILL - 1) & 1:
        return True
    return bool(int(fields[6]) & _PF_EXITING) and int(fields[17]) == 1  # the main thread, with no others


@dataclass(frozen=True)
class ProcessState:
    """Of one process, as proc(5) has it in `stat`; pids are this machine's."""

    letter: str
    parent: int
    session: int
    threads: int

    @property
    def is_stopped(self) -> bool:
        """True when SIGSTOP or a terminal has stopped it; not seen of a frozen process (cgroup v1)."""
        return self.letter == "T"

    @property
    def lives_without_leader(self) -> bool:
        """True when the main thread has ended and others have not."""
        return self.letter == "Z" and self.threads > 1


def process_state(pid: int) -> ProcessState | None:
    """None when it has ended."""
    try:
        letter, *rest = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return ProcessState(letter.decode(), int(rest[0]), int(rest[2]), int(rest[16]))
    except (OSError, ValueError, IndexError):
        return None


def passing_state(pid: int) -> str:
    """The passing state of a process in which it cannot be dumped; empty when it can be.

    CRIU dumps no process whose main thread has ended and others have not. The parent of a process that vfork or
    posix_spawn made waits in the kernel, out of any tracer's reach, until that calls exec; till then they share their
    memory.
    """
    if not (state := process_state(pid)):
        return ""
    if state.lives_without_leader:
        return f"process {pid} has threads, and its main thread has ended"
    if state.parent > 0 and _libc.syscall(_SYS_KCMP, pid, state.parent, _KCMP_VM, 0, 0) == 0:
        return f"process {pid} was made by vfork, and has not called exec yet"
    return ""


def doings(pids: Iterable[int], most: int = 6) -> str:
    """The activity of processes, for the reason of an error: name, PID, state (proc(5)), seconds of CPU time, and the
    function of the kernel that it waits in. The busiest first, at most so many."""
    found = list[tuple[float, str]]()
    for pid in pids:
        try:
            name, _, rest = Path(f"/proc/{pid}/stat").read_text(errors="replace").partition("(")[2].rpartition(")")
            waits = Path(f"/proc/{pid}/wchan").read_text().strip("0")
        except OSError:
            continue
        fields = rest.split()
        seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        found.append((seconds, f"{printable(name)} {pid} {fields[0]} {seconds:.1f} s" + (f" {waits}" if waits else "")))
    found.sort(key=lambda one: -one[0])
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(words for _, words in found[:most]) + more


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


def engine_traces(pids: Iterable[int]) -> bool:
    """True while a CRIU of ours traces one of these processes; it is recognized by the library that it was started
    with. Any other tracer is a debugger."""
    for tracer in {tracer_of(pid) for pid in pids} - {0}:
        with contextlib.suppress(OSError):  # it ended
            if b"/libwherry-criu.so" in Path(f"/proc/{tracer}/maps").read_bytes():
                return True
    return False


def number_of_mappings(pid: int) -> int:
    """The mappings of a process; 0 when it has ended."""
    try:
        return Path(f"/proc/{pid}/maps").read_bytes().count(b"\n")
    except OSError:
        return 0
