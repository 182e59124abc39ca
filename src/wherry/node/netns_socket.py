"""TCP connections of hosts that are network namespaces of this machine.

A move sends its data over them. They are established before the freeze, so that no handshake prolongs it, and the data
crosses the same network as between real machines.
"""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Callable
from typing import TypeVar

from wherry.base.own_thread import in_own_thread

T = TypeVar("T")
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)
_BUFFER = 16 << 20
"""Bytes of socket buffer, beyond the system's limit: the bandwidth-delay product of 1 Gbit/s and 100 ms fits."""
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33
"""asm-generic/socket.h; for root."""
_LOST, _KEEPALIVE = 90, 5
"""Seconds without an acknowledgement, or in which the receiver reads nothing, until the connection fails: more than the
minute after which a node that lacks memory is given up, so that a host that is only busy loses none. A step in which
the node is frozen has a bound of its own (`wherry.node.container.progress_bounds`). Then the seconds between
keep-alives.
"""


def in_netns(path: str, act: Callable[[], T]) -> T:
    """`act()` in a thread of its own that has entered the network namespace at `path`.

    Sockets created there belong to that namespace. The thread ends, so no thread of the daemon stays in it.
    """

    def enter() -> T:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if _libc.setns(descriptor, _CLONE_NEWNET):
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), path)
        finally:
            os.close(descriptor)
        return act()

    return in_own_thread(enter, "netns")


def listen_in(netns: str, address: str, timeout: float) -> socket.socket:
    """A listener at `address` in a namespace; `accept` waits for at most `timeout` seconds."""
    listener = in_netns(netns, lambda: socket.create_server((address, 0), backlog=4))
    listener.settimeout(timeout)
    return listener


def connect_from(netns: str, address: str, port: int, timeout: float) -> socket.socket:
    """A connection from a namespace. OSError when nobody answers within `timeout` seconds."""
    return in_netns(netns, lambda: socket.create_connection((address, port), timeout=timeout))


def tune(end: socket.socket, sends: bool) -> None:
    """Sets the options of a connection that carries much data: large buffers, and failure when the other end is
    lost."""
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _LOST * 1000)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _LOST // 2)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE)
    end.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE if sends else _SO_RCVBUFFORCE, _BUFFER)
