"""State of processes that CRIU neither carries nor refuses, as far as it can be seen from outside of them.

Each difference from this process's state is reported, as CRIU is its child and restores its own state. No file shows
the operations of a process on semaphores with SEM_UNDO; but kcmp(2) finds whether two threads have the same list of
them, and a thread that enters an IPC namespace has none. A process that makes a thread gets a list, too, an empty one:
so of a process with threads nothing is reported, and a process whose other threads have ended may be refused for
nothing, where semaphores are used.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from wherry.base.own_thread import in_own_thread
from wherry.node.container.processes import namespace_pids, process_state

_SYS_KCMP, _KCMP_SYSVSEM = 312, 6
"""linux/kcmp.h."""
_CLONE_NEWIPC = 0x08000000
_OF_MEMORY_FAILURES = 0x08000080
"""PF_MCE_EARLY and PF_MCE_PROCESS, linux/sched.h, among the flags in /proc/PID/stat."""
_LOCKED = re.compile(r"^VmLck:\s+[1-9]", re.MULTILINE)
_ON_FAULT = re.compile(r"^VmFlags:.* lf\b", re.MULTILINE)
_libc = ctypes.CDLL(None, use_errno=True)


def obstacles_of(pid: int) -> Iterator[str]:
    """The state of a process that a move would change. OSError when it has ended."""
    if _personality(pid) != _personality(os.getpid()):
        yield "has another personality (setarch), which CRIU does not restore"
    if _memory_failures(pid) != _memory_failures(os.getpid()):
        yield "has a policy for failures of memory (PR_MCE_KILL), which CRIU does not restore"
    if _LOCKED.search(_text(pid, "status")) and _ON_FAULT.search(_text(pid, "smaps")):
        yield "has memory that is locked when it is used (MLOCK_ONFAULT), all of which CRIU would lock"


def users_of_undo(pids: Sequence[int]) -> list[int]:
    """The programs without threads that have used SEM_UNDO and may have something to undo: somebody has worked a
    semaphore of the node. Its first process, which is ours, always has a list."""

    def look() -> list[int]:
        with open(f"/proc/{pids[0]}/ns/ipc", "rb", buffering=0) as namespace:
            if _libc.setns(namespace.fileno(), _CLONE_NEWIPC):
                return []
        worked = any(int(line.split()[8]) for line in _text("sysvipc", "sem").splitlines()[1:])
        return [pid for pid in pids if _has_undo(pid)] if worked else []

    with contextlib.suppress(OSError, IndexError):  # the first one ended, or there is none
        return in_own_thread(look, "semaphores")
    return []


def _has_undo(pid: int) -> bool:
    state, here = process_state(pid), threading.get_native_id()
    if not state or state.threads > 1 or namespace_pids(pid)[-1] == 1:
        return False
    return bool(_libc.syscall(_SYS_KCMP, here, pid, _KCMP_SYSVSEM, 0, 0) > 0)


def _personality(pid: int) -> int:
    return int(_text(pid, "personality"), 16)


def _memory_failures(pid: int) -> int:
    return int(_text(pid, "stat").rpartition(")")[2].split()[6]) & _OF_MEMORY_FAILURES


def _text(pid: int | str, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
