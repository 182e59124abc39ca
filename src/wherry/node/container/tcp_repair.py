"""Ends the repair mode of TCP sockets after CRIU was killed.

During a dump the connections of a node are in repair mode (TCP_REPAIR, linux/tcp.h): they neither send nor acknowledge.
CRIU ends it itself, unless it is killed; then the processes continue with dead connections. Invariant: a socket is
changed only in repair mode, so this is safe for any node at any time.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
from collections.abc import Iterable, Iterator

_SYS_PIDFD_GETFD = 438
_TCP_REPAIR, _ON, _OFF = 19, 1, 0
_libc = ctypes.CDLL(None, use_errno=True)


def end_repair(pids: Iterable[int]) -> int:
    """Ends repair mode on all TCP sockets of these processes; returns their number. Needs CAP_NET_ADMIN."""
    ended, seen = 0, set()
    for pid in pids:
        with contextlib.suppress(OSError):
            process = os.pidfd_open(pid)
            try:
                for descriptor, inode in _sockets(pid):
                    if inode not in seen:
                        seen.add(inode)
                        ended += _end(process, descriptor)
            finally:
                os.close(process)
    return ended


def _sockets(pid: int) -> Iterator[tuple[int, str]]:
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/{pid}/fd/{name}")
            if target.startswith("socket:"):
                yield int(name), target


def _end(process: int, descriptor: int) -> bool:
    copy = _libc.syscall(_SYS_PIDFD_GETFD, process, descriptor, 0)
    if copy < 0:
        return False
    with socket.socket(fileno=copy) as connection:
        if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.proto != socket.IPPROTO_TCP:
            return False
        if connection.getsockopt(socket.IPPROTO_TCP, _TCP_REPAIR) != _ON:
            return False
        # this also sends a window probe, so that a peer in backoff resumes at once
        connection.setsockopt(socket.IPPROTO_TCP, _TCP_REPAIR, _OFF)
        return True
