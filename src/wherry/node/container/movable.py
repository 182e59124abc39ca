"""Refuses the move of a container whose processes hold what CRIU cannot carry, or would lose without a word.

The look is from outside, at /proc of the node's processes, before anything is made or frozen: what CRIU itself refuses
in the middle of a dump costs a freeze and a roll-back, and what it loses silently is found by nobody. It is cheap (a
readlink for each descriptor, one file for each process), since it is part of every move and of its dry run. What
/proc does not show cannot be refused; docs/design/0002-move.md lists it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import re
import stat
import struct
import termios

from wherry.base.errors import Code, Refused
from wherry.node.container.timers import borrowed

_CARRIED = ("eventfd", "eventpoll", "signalfd", "inotify", "timerfd", "pidfd", "fanotify", "bpf-map")
"""Kinds of anonymous inodes that CRIU restores."""
_MEMORY = ("/memfd:", "/SYSV")
_TARGET = re.compile(r"anon_inode:\[?([\w-]+)")
_THREAD_TIMER = re.compile(r"^notify: \w+/tid\.\d+$", re.MULTILINE)
_MQUEUE_MAGIC = 0x19800202
"""`f_type` of statfs(2): linux/magic.h."""
_libc = ctypes.CDLL(None, use_errno=True)
_OF_THE_KERNEL = ("010000E0",)
"""224.0.0.1, of which every interface is a member."""


def require_movable(pids: list[int]) -> None:
    """Refused with the first object that a move would lose."""
    if reason := move_obstacle(pids):
        raise Refused(Code.UNSUPPORTED, "the node holds what cannot be moved", reason, "end that program, or wait")


def move_obstacle(pids: list[int]) -> str:
    """Which process holds which object that a move would lose; empty when nothing is seen."""
    seen: set[str] = set()
    for pid in pids:
        try:
            what = _of_process(pid, seen)
        except OSError:
            continue  # it ended
        if what:
            return f"{_name(pid)} {what}"
    return _multicast(pids[0]) if pids else ""


def _of_process(pid: int, seen: set[str]) -> str:
    directory = os.open(f"/proc/{pid}/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in os.listdir(directory):
            with contextlib.suppress(FileNotFoundError):
                target = os.readlink(name, dir_fd=directory)
                if what := _of_descriptor(pid, int(name), target, seen):
                    return f"holds {what} (descriptor {name}), which CRIU cannot move"
    finally:
        os.close(directory)
    if _THREAD_TIMER.search(_text(f"/proc/{pid}/timers")):
        return "has a timer that signals one thread (SIGEV_THREAD or SIGEV_THREAD_ID), which CRIU cannot move"
    return ""


def _text(path: str) -> str:
    """A file of /proc; io's layers would cost more than the kernel does."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return b"".join(iter(lambda: os.read(file, 1 << 16), b"")).decode(errors="replace")
    finally:
        os.close(file)


def _of_descriptor(pid: int, number: int, target: str, seen: set[str]) -> str:
    if target.startswith("anon_inode:"):
        kind = match[1] if (match := _TARGET.match(target)) else target
        if kind not in _CARRIED:
            return f"an object of kind {kind}"
        if kind == "eventfd" and "eventfd-semaphore: 1" in _text(f"/proc/{pid}/fdinfo/{number}"):
            return "an eventfd in semaphore mode"
        return "an inotify queue with unread events" if kind == "inotify" and _unread(pid, number) else ""
    if target.startswith("pipe:") and target not in seen and _writes(pid, number):
        seen.add(target)
        return "a pipe in packet mode (O_DIRECT)" if _flags(pid, number) & os.O_DIRECT else ""
    if target.count("/") == 1 and not target.startswith(_MEMORY) and target.startswith("/") and _is_queue(pid, number):
        return f"the POSIX message queue {target}"
    return ""


def _is_queue(pid: int, number: int) -> bool:
    """True for a file of the kernel's mqueue file system."""
    buffer = ctypes.create_string_buffer(256)
    if _libc.statfs(f"/proc/{pid}/fd/{number}".encode(), buffer) < 0:
        return False
    return int.from_bytes(buffer.raw[:8], "little") == _MQUEUE_MAGIC


def _writes(pid: int, number: int) -> bool:
    """Only the writing end of a pipe tells its mode."""
    return bool(os.lstat(f"/proc/{pid}/fd/{number}").st_mode & stat.S_IWUSR)


def _flags(pid: int, number: int) -> int:
    return int(re.findall(r"flags:\s*(\d+)", _text(f"/proc/{pid}/fdinfo/{number}"))[0], 8)


def _unread(pid: int, number: int) -> int:
    with borrowed(pid, number) as file:
        return int(struct.unpack("i", fcntl.ioctl(file, termios.FIONREAD, b"\0" * 4))[0])


def _multicast(pid: int) -> str:
    """A group that a socket of the node's network namespace is a member of."""
    try:
        lines = _text(f"/proc/{pid}/net/igmp").splitlines()[1:]
    except OSError:
        return ""
    for line in lines:
        words = line.split()
        if line.startswith("\t") and words and words[0] not in _OF_THE_KERNEL:
            address = ".".join(str(byte) for byte in reversed(bytes.fromhex(words[0])))
            return f"a socket of the node is a member of multicast group {address}, which CRIU does not restore"
    return ""


def _name(pid: int) -> str:
    """Number inside the node, and command."""
    try:
        status = _text(f"/proc/{pid}/status")
    except OSError:
        return "a process"
    inside = re.findall(r"^NSpid:.*\s(\d+)$", status, re.MULTILINE)
    command = re.findall(r"^Name:\s(.*)$", status, re.MULTILINE)
    return f"process {inside[0] if inside else pid} ({command[0] if command else '?'})"
