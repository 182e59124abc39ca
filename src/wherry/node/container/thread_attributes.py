"""Restores thread attributes that CRIU does not: CPU affinity, I/O priority, timer slack, and the filter of core dumps.

A restored thread has the daemon's attributes. A rank that its launcher bound to a core would run on any core, and its
times would change for no visible reason. Invariant: a thread with the daemon's attributes is not changed, so a node
without bound threads costs a few microseconds per thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from wherry.base.errors import Code, Failed
from wherry.model.records import Pin
from wherry.node.container.background import BackgroundTask
from wherry.node.container.fd_identity import inner_pid
from wherry.node.container.host import ThreadAttributes

_IOPRIO_SET, _IOPRIO_GET, _PROCESS = 251, 252, 1
"""System calls of x86-64, and IOPRIO_WHO_PROCESS, which means one thread."""
_BEST_EFFORT, _NONE = 2 << 13, 4
"""The class best effort; no class, as some kernels give it."""
_libc = ctypes.CDLL(None, use_errno=True)


def read_all(pids: list[int]) -> dict[int, ThreadAttributes]:
    """The attributes of a frozen node's threads, by TID inside the node."""
    found = {}
    for pid in pids:
        with contextlib.suppress(OSError):  # a process that ended
            core = _core(pid)
            for thread in _threads([pid]):
                with contextlib.suppress(OSError):
                    found[inner_pid(thread)] = read(thread, core)
    return found


def carry_to(pids: list[int], threads: Mapping[int, ThreadAttributes]) -> None:
    """Sets the attributes of the restored threads. Failed when one cannot be set."""
    own = read(os.getpid())
    bound = {inside: attributes for inside, attributes in threads.items() if attributes != own}
    copies = {inner_pid(thread): thread for thread in _threads(pids)} if bound else {}
    for inside, attributes in bound.items():
        try:
            write(copies[inside], attributes, own)
        except (OSError, KeyError) as error:
            what = f"affinity or priority of thread {inside} of the node could not be carried over"
            raise Failed(Code.MOVE_FAILED, what, str(error), "repeat the move") from None


def translated(
    threads: Mapping[int, ThreadAttributes], source: Pin | None, destination: Pin | None
) -> Mapping[int, ThreadAttributes]:
    """The attributes where a pinned node has other CPUs: a thread keeps its place among them."""
    if source is None or destination is None or source.cpus == destination.cpus:
        return threads
    there = dict(zip(source.cpus, destination.cpus, strict=False))
    return {
        inside: replace(one, cpus=frozenset(there[cpu] for cpu in one.cpus if cpu in there) or one.cpus)
        for inside, one in threads.items()
    }


def read(thread: int, core: int | None = None) -> ThreadAttributes:
    """A thread's current attributes; `core` if it is known. An I/O priority that follows from its nice value is 0."""
    priority = int(_libc.syscall(_IOPRIO_GET, _PROCESS, thread))
    if priority == _NONE or (_tells_what_follows() and priority == _following(thread)):
        priority = 0
    slack = int(Path(f"/proc/{thread}/timerslack_ns").read_text())
    return ThreadAttributes(
        frozenset(os.sched_getaffinity(thread)), priority, slack, _core(thread) if core is None else core
    )


def _core(pid: int) -> int:
    """The filter of core dumps; the default where the kernel has none (CONFIG_ELF_CORE), and of an ended process."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        return int(Path(f"/proc/{pid}/coredump_filter").read_text(), 16)
    return ThreadAttributes.core


@functools.cache
def _tells_what_follows() -> bool:
    """True when this kernel gives an I/O priority that follows from the nice value as if somebody had set it. A thread
    that has none of its own shows it."""

    def priority_of_none() -> int:
        _libc.syscall(_IOPRIO_SET, _PROCESS, 0, 0)
        return int(_libc.syscall(_IOPRIO_GET, _PROCESS, 0))

    return BackgroundTask(priority_of_none).result() not in (0, _NONE)


def _following(thread: int) -> int:
    """The I/O priority that follows from a thread's nice value."""
    return _BEST_EFFORT | (os.getpriority(os.PRIO_PROCESS, thread) + 20) // 5


def write(thread: int, attributes: ThreadAttributes, before: ThreadAttributes) -> None:
    """Sets the attributes that differ from `before`."""
    if attributes.cpus != before.cpus:
        os.sched_setaffinity(thread, attributes.cpus)
    if attributes.io_priority != before.io_priority:
        if _libc.syscall(_IOPRIO_SET, _PROCESS, thread, attributes.io_priority):
            raise OSError(ctypes.get_errno(), "ioprio_set")
    if attributes.slack != before.slack and attributes.slack:  # 0: a real-time thread, which has no slack
        Path(f"/proc/{thread}/timerslack_ns").write_text(str(attributes.slack))
    if attributes.core != before.core:
        Path(f"/proc/{thread}/coredump_filter").write_text(hex(attributes.core))


def _threads(pids: list[int]) -> list[int]:
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            found += [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    return found
