"""The connections of one move, made side by side while the rest is prepared, and opened wide before they are needed.

TCP finds out how much a way holds by doubling what it sends from round trip to round trip: over 20 ms and 1 Gbit/s that
takes longer than the freeze of a small node. So what will be in a hurry sends nothing of meaning first, as much as a
round trip holds, and both ends' windows stay as they were then. Invariant: what was made and not taken is closed.
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
"""The one that goes from the destination to the source."""
_IN_A_HURRY = {"pages": (1.0, 16 << 20), "tree": (0.5, 8 << 20), "images": (1.0, 256 << 10)}
"""What is sent while the node stands still: what is sent to open its window, in round trips (a tree shares the way with
pages) and in bytes at most (images are small)."""
_NEAR = 2e-3
"""Seconds of a round trip from which on it pays."""
_ASSUMED = 1e9
"""Bit/s of a way whose bandwidth nobody declared."""
_TCPI_RTT = 68
"""Offset of tcpi_rtt (u32, microseconds) in struct tcp_info, linux/tcp.h."""
_TIMEOUT = 10.0


class WarmConnections:
    """Between two hosts. `limit_rate` is that of the move: what opens windows is counted in it."""

    def __init__(self, fabric: Fabric, source: str, destination: str) -> None:
        self._fabric = fabric
        self._hosts = (source, destination)
        self._pool = ThreadPoolExecutor(4, thread_name_prefix="connect")
        self._made: dict[str, Future[Ends]] = {}

    def begin(self, names: Sequence[str], pace: RateLimit) -> None:
        """Begins to make these."""
        for name in names:
            self._made[name] = self._pool.submit(self._make, name, pace)

    def take(self, name: str) -> Ends:
        """The two ends, the sending one first, as soon as they are ready. UNREACHABLE when there is no way."""
        return self._made.pop(name).result()

    def close(self) -> None:
        """Closes what nobody took. Idempotent."""
        while self._made:
            with contextlib.suppress(Failed, OSError):
                for end in self._made.popitem()[1].result():
                    end.close()
        self._pool.shutdown()

    def _make(self, name: str, pace: RateLimit) -> Ends:
        one, other = self._hosts if name != BACK else self._hosts[::-1]
        fabric = self._fabric
        ends = connect_between(fabric.host_netns(one), fabric.host_netns(other), fabric.host_address(other))
        if name in _IN_A_HURRY:
            try:
                _open_wide(ends, pace, *_IN_A_HURRY[name])
            except OSError as error:
                for end in ends:
                    end.close()
                what = f"no connection to {other}"
                raise Failed(Code.UNREACHABLE, what, str(error), "wherry site link") from None
        return ends


class _Opening:
    """A connection that sends nothing of meaning."""

    def __init__(self, near: socket.socket) -> None:
        self._near = near

    def limit_rate(self, rate: float) -> None:
        set_rate_limit(self._near, rate)


def _open_wide(ends: Ends, pace: RateLimit, trips: float, most: int) -> None:
    """Sends what these round trips hold, and receives it. OSError when the connection breaks or stands still."""
    near, far = ends
    (microseconds,) = struct.unpack_from("=I", near.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256), _TCPI_RTT)
    if microseconds < _NEAR * 1e6:
        return
    size = min(most, int(trips * microseconds * 1e-6 * (pace.rate or _ASSUMED) / 8))
    far.settimeout(_TIMEOUT)
    with pace.sending(_Opening(near)):
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
                raise ConnectionError("it was cut")
            left -= got
    finally:
        if left:
            near.shutdown(socket.SHUT_RDWR)  # the sender waits no more
        sender.join()


def _send(near: socket.socket, size: int) -> None:
    with contextlib.suppress(OSError):  # the receiver tells
        near.sendall(bytes(size))
