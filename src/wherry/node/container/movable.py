"""Refuses the move of a container whose processes hold kernel objects that CRIU cannot restore, or loses silently.

The check reads /proc of the node's running processes before anything is created or frozen: a refusal by CRIU in the
middle of a dump costs a freeze and a roll-back, and a silent loss goes unnoticed. It is cheap (a readlink per
descriptor, one file per process), as it is part of every move and dry run. Objects that /proc does not show cannot be
refused; docs/design/0002-move.md lists them.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import stat
import struct
import termios

from wherry.base.errors import Code, Refused
from wherry.base.text import printable
from wherry.node.container.processes import tracer_of
from wherry.node.container.timers import borrowed

_CARRIED = ("eventfd", "eventpoll", "signalfd", "inotify", "timerfd", "pidfd", "fanotify", "bpf-map")
"""Kinds of anonymous inodes that CRIU restores."""
_MQUEUE_MAGIC = 0x19800202
"""f_type of the file system of POSIX message queues, ipc/mqueue.c."""
_libc = ctypes.CDLL(None, use_errno=True)
_MEMORY = ("/memfd:", "/SYSV")
_TARGET = re.compile(r"anon_inode:\[?([\w-]+)")
_THREAD_TIMER = re.compile(r"^notify: \w+/tid\.\d+$", re.MULTILINE)
_OF_THE_KERNEL = ("010000E0",)
"""224.0.0.1, which every interface joins."""


def require_movable(pids: list[int]) -> None:
    """Refused with the first object that a move would lose."""
    if reason := move_obstacle(pids):
        raise Refused(
            Code.UNSUPPORTED,
            "the node holds an object that cannot be moved",
            reason,
            "end that program, or wait until it is done",
        )


def move_obstacle(pids: list[int]) -> str:
    """Which process holds an object that a move would lose; empty when none is found."""
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
            try:
                what = _of_descriptor(pid, int(name), os.readlink(name, dir_fd=directory), seen)
            except OSError:
                continue  # closed meanwhile, or replaced by another object
            if what:
                return f"holds {what} (descriptor {name}), which CRIU cannot move"
    finally:
        os.close(directory)
    if _THREAD_TIMER.search(_text(f"/proc/{pid}/timers")):
        return "has a timer that signals one thread (SIGEV_THREAD or SIGEV_THREAD_ID), which CRIU cannot move"
    return "is traced by a debugger or strace, and CRIU has to trace it itself" if tracer_of(pid) else ""


def _text(path: str) -> str:
    """Content of a file in /proc, without the overhead of io's buffered classes."""
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
    """True for a POSIX message queue. Its path alone is no proof: a file that an earlier move handed over has a
    similar one."""
    status = ctypes.create_string_buffer(256)
    if _libc.statfs(f"/proc/{pid}/fd/{number}".encode(), status):
        return False
    return bool(struct.unpack_from("@l", status)[0] == _MQUEUE_MAGIC)


def _writes(pid: int, number: int) -> bool:
    """True for the writing end of a pipe: only its flags show packet mode."""
    return bool(os.lstat(f"/proc/{pid}/fd/{number}").st_mode & stat.S_IWUSR)


def _flags(pid: int, number: int) -> int:
    return int(re.findall(r"flags:\s*(\d+)", _text(f"/proc/{pid}/fdinfo/{number}"))[0], 8)


def _unread(pid: int, number: int) -> int:
    with borrowed(pid, number) as file:
        return int(struct.unpack("i", fcntl.ioctl(file, termios.FIONREAD, b"\0" * 4))[0])


def _multicast(pid: int) -> str:
    """Why a multicast membership in the node's network namespace would be lost; empty when there is none."""
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
    """PID inside the node, and command."""
    try:
        status = _text(f"/proc/{pid}/status")
    except OSError:
        return "a process"
    inside = re.findall(r"^NSpid:.*\s(\d+)$", status, re.MULTILINE)
    command = re.findall(r"^Name:\s(.*)$", status, re.MULTILINE)
    return printable(f"process {inside[0] if inside else pid} ({command[0] if command else '?'})")
