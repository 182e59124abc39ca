"""The descriptors in messages that were sent to a Unix socket (SCM_RIGHTS) and that no program has received yet.

A look at a message (MSG_PEEK) leaves it where it is and gives duplicates of its descriptors. Messages behind others are
seen only with SO_PEEK_OFF, which a running program would notice: all of them are looked at only while a node is frozen.
The kernel counts the descriptors since Linux 5.10; before, none is seen. Nothing is read beyond the last of them, where
the kernel would report an error of the socket, and report it only once.
"""

from __future__ import annotations

import os
import re
import select
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from wherry.node.container.timers import borrowed

_COUNT = re.compile(r"^scm_fds: (\d+)$", re.MULTILINE)
_SO_PEEK_OFF, _SCM_PIDFD = 42, 4
"""asm-generic/socket.h, linux/socket.h."""
MAX_DEPTH = 8
"""Sockets in messages at one another that are looked at, as each takes descriptors of ours."""
_BYTES, _ANCILLARY = 1 << 16, 4096
"""Room for the bytes of a message, and for the 253 descriptors and the credentials that it may have."""


def count(pid: int, number: int) -> int:
    """The descriptors in the messages at a Unix socket of a process. OSError when the socket is closed."""
    match = _COUNT.search(Path(f"/proc/{pid}/fdinfo/{number}").read_text())
    return int(match[1]) if match else 0


def everything_at(
    pid: int, number: int, around: int = 0, seen: set[int] | None = None
) -> Iterator[tuple[tuple[int, ...], int]]:
    """All descriptors in the messages at a Unix socket of a frozen process, each followed by those in messages at it:
    its place, which is its number among those of its socket behind the place of the socket, and a duplicate, which is
    closed afterwards. `around`: how many sockets have this one in their messages; `seen`: the inodes of the sockets
    that were looked at, as one may be in many messages, even at itself. OSError when the process has ended."""
    seen = set() if seen is None else seen
    with borrowed(pid, number) as end:
        seen.add(os.fstat(end).st_ino)
        for index, file in enumerate(descriptors(end, count(pid, number), everything=True)):
            yield (index,), file
            status = os.fstat(file)
            if stat.S_ISSOCK(status.st_mode) and status.st_ino not in seen and around < MAX_DEPTH:
                for place, inner in everything_at(os.getpid(), file, around + 1, seen):
                    yield (index, *place), inner


def descriptors(end: int, total: int, everything: bool) -> Iterator[int]:
    """Duplicates of the `total` descriptors in the messages at a Unix socket, in their order; those of a message are
    closed when the next one is looked at, and at the end. Unless `everything`, the descriptors of the first message
    that has some."""
    if _has_error(end):
        return
    with socket.socket(fileno=os.dup(end)) as file:
        before = file.getsockopt(socket.SOL_SOCKET, _SO_PEEK_OFF)
        if before >= 0 and not everything:
            return  # its program would continue to look behind this message
        try:
            if everything:
                file.setsockopt(socket.SOL_SOCKET, _SO_PEEK_OFF, 0)
            while total > 0:
                found = _peek(file)
                total -= len(found)
                try:
                    yield from found
                finally:
                    _close(found)
                if not everything:
                    return
        except OSError:
            return  # nobody has sent to it, or somebody has received meanwhile
        finally:
            if everything:
                file.setsockopt(socket.SOL_SOCKET, _SO_PEEK_OFF, before)


def _peek(file: socket.socket) -> list[int]:
    flags = socket.MSG_PEEK | socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
    _, ancillary, *_ = file.recvmsg(_BYTES, _ANCILLARY, flags)
    found = list[int]()
    for _, kind, data in ancillary:
        numbers = [int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data), 4)]
        if kind == socket.SCM_RIGHTS:
            found += numbers
        elif kind == _SCM_PIDFD:  # of the sender, made for us
            _close(numbers)
    return found


def _close(numbers: list[int]) -> None:
    for number in numbers:
        os.close(number)


def _has_error(end: int) -> bool:
    look = select.poll()
    look.register(end, 0)
    return any(event & select.POLLERR for _, event in look.poll(0))
