"""The TCP connections of one move, established in parallel in advance, their congestion windows warmed.

TCP's slow start doubles the window once per round trip: over 20 ms and 1 Gbit/s that takes longer than the freeze of a
small node. So the connections that are used during the freeze send dummy data first, about one bandwidth-delay product.
Invariant: `close` closes every connection that was not taken.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from wherry.base.errors import Code, Failed
from wherry.fabric.protocol import Fabric
from wherry.node.container.streams import RateLimit, set_rate_limit
from wherry.node.netns_socket import connect_between

Ends = tuple[socket.socket, socket.socket]
BACK = "sums"
"""The connection from the destination to the source."""
_WARMED = {"pages": (1.0, 16 << 20), "tree": (0.5, 8 << 20), "images": (1.0, 256 << 10)}
"""Connections that are used during the freeze: amount of dummy data, in bandwidth-delay products (the tree shares the
path with the pages) and in bytes at most (images are small)."""
_NEAR = 2e-3
"""Round-trip time in seconds below which warming does not pay."""
_ASSUMED = 1e9
"""Bit/s of a path without a declared bandwidth."""
_TCPI_RTT = 68
"""Offset of tcpi_rtt (u32, microseconds) in struct tcp_info, linux/tcp.h."""
_TIMEOUT = 10.0


class WarmConnections:
    """Connections between two hosts."""

    def __init__(self, fabric: Fabric, source: str, destination: str) -> None:
        self._fabric = fabric
        self._hosts = (source, destination)
        self._pool = ThreadPoolExecutor(4, thread_name_prefix="connect")
        self._pending: dict[str, Future[Ends]] = {}

    def begin(self, names: Sequence[str], limit: RateLimit) -> None:
        """Starts to establish connections in the background. Dummy data counts against the move's `limit`."""
        for name in names:
            self._pending[name] = self._pool.submit(self._establish, name, limit)

    def take(self, name: str) -> Ends:
        """Waits for a connection and returns its two ends, the sending one first. UNREACHABLE when it failed."""
        return self._pending.pop(name).result()

    def close(self) -> None:
        """Closes the connections that were not taken. Idempotent."""
        while self._pending:
            with contextlib.suppress(Failed, OSError):
                for end in self._pending.popitem()[1].result():
                    end.close()
        self._pool.shutdown()

    def _establish(self, name: str, limit: RateLimit) -> Ends:
        one, other = self._hosts if name != BACK else self._hosts[::-1]
        fabric = self._fabric
        ends = connect_between(fabric.host_netns(one), fabric.host_netns(other), fabric.host_address(other))
        if name in _WARMED:
            try:
                _warm(ends, limit, *_WARMED[name])
            except OSError as error:
                for end in ends:
                    end.close()
                what = f"the connection to host {other} broke"
                raise Failed(Code.UNREACHABLE, what, str(error), "wherry site link") from None
        return ends


class _Warming:
    """A connection that sends dummy data."""

    def __init__(self, near: socket.socket) -> None:
        self._near = near

    def limit_rate(self, rate: float) -> None:
        set_rate_limit(self._near, rate)


def _warm(ends: Ends, limit: RateLimit, trips: float, most: int) -> None:
    """Sends and receives dummy data for `trips` round trips. OSError when the connection breaks or stalls."""
    near, far = ends
    (microseconds,) = struct.unpack_from("=I", near.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256), _TCPI_RTT)
    if microseconds < _NEAR * 1e6:
        return
    size = min(most, int(trips * microseconds * 1e-6 * (limit.rate or _ASSUMED) / 8))
    far.settimeout(_TIMEOUT)
    with limit.sending(_Warming(near)):
        _pass_through(near, far, size)
    far.settimeout(None)


def _pass_through(near: socket.socket, far: socket.socket, size: int) -> None:
    left = size
    sender = threading.Thread(target=_send, args=(near, size), name="warm")
    sender.start()
    buffer = bytearray(1 << 18)
    try:
        while left:
            got = far.recv_into(buffer, min(left, len(buffer)))
            if not got:
                raise ConnectionError("closed by the other end")
            left -= got
    finally:
        if left:
            near.shutdown(socket.SHUT_RDWR)  # unblocks the sender
        sender.join()


def _send(near: socket.socket, size: int) -> None:
    with contextlib.suppress(OSError):  # the receiver reports it
        near.sendall(bytes(size))
