"""The TCP connections of one move, established in parallel in advance, their congestion windows warmed.

    destination                                  source
    listens, offers (address, port, secret) ---> connects, sends the secret and the size of the dummy data
    checks, reads the dummy data  <------------- dummy data
    confirms by one byte -----------------------> done: nothing is left in the connection

Between machines the offer has a key, too, and all this is sent inside a `Tunnel`; memory is sealed by the pager itself.

TCP's slow start doubles the window once per round trip: over 20 ms and 1 Gbit/s that takes longer than the freeze of a
small node. So the connections that are used during the freeze send dummy data first, about one bandwidth-delay product.
Invariant: `close` closes every connection that was not taken.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import socket
import struct
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol

from pydantic import SecretBytes

from wherry.base.errors import Code, Failed
from wherry.node.container.deaths import first_problem
from wherry.node.container.host import Channel, Offer, Offers
from wherry.node.container.progress_bounds import round_trip
from wherry.node.container.rate_limit import RateLimit, set_rate_limit
from wherry.node.container.tunnel import Tunnel
from wherry.node.netns_socket import connect_from, listen_in, tune

_WARMED = {
    Channel.PAGES: (1.0, 16 << 20),
    Channel.TREE: (0.5, 8 << 20),
    Channel.DISK: (0.5, 8 << 20),
    Channel.IMAGES: (1.0, 256 << 10),
}
"""Connections that are used during the freeze: amount of dummy data, in bandwidth-delay products (the tree shares the
path with the pages) and in bytes at most (images are small)."""
_MIN_ROUND_TRIP = 2e-3
"""Round-trip time in seconds below which warming does not pay."""
_ASSUMED = 1e9
"""Bit/s of a path without a declared bandwidth."""
_TIMEOUT = 30.0
"""Seconds that each step of making a connection may take; the node runs meanwhile, or is frozen at its source."""
_PARALLEL = 20
"""Connections that are established at the same time: all of a move."""
_HELLO, _CONFIRMED = struct.Struct("!32sQ"), b"+"
"""The first bytes of the source: the secret, and the number of bytes of dummy data."""
_KEY = 32
"""KEY_SIZE of native/include/wherry/key.h."""


class Wire(Protocol):
    """The facts that a move needs about the network between hosts; a `Fabric` has more."""

    leaves_machine: bool
    """Whether hosts are other machines."""

    def host_netns(self, host: str) -> str:
        """Path of the network namespace from which the host reaches others."""

    def host_address(self, host: str) -> str:
        """The address by which other hosts reach it."""


@dataclass(frozen=True)
class Underlay:
    """A host in its fabric's underlay."""

    fabric: Wire
    host: str

    @property
    def netns(self) -> str:
        """Path of the host's network namespace."""
        return self.fabric.host_netns(self.host)

    @property
    def address(self) -> str:
        """The address by which other hosts reach it."""
        return self.fabric.host_address(self.host)


class _Connections:
    """Connections that are established in the background."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_PARALLEL, thread_name_prefix="connect")
        self._pending: dict[tuple[Channel, int], Future[socket.socket]] = {}
        """By channel, and the number of the connection in it."""
        self._tunnels = list[Tunnel]()
        """The admitted connections."""

    def problem(self) -> str:
        """Why the data from a connection differs from the data that was sent; empty when it is the same. Cheap."""
        return first_problem(*self._tunnels)

    def take(self, channel: Channel, number: int = 0) -> socket.socket:
        """Waits for a connection and returns its end. UNREACHABLE when it failed."""
        pending = self._pending.pop((channel, number), None)
        if pending is None:
            raise Failed(Code.MOVE_FAILED, f"the connection for the {channel} was not prepared", "", "report this")
        return pending.result()

    def take_all(self, channel: Channel) -> list[socket.socket]:
        """All connections of a channel, in their order."""
        count = sum(each == channel for each, _ in self._pending)
        ends = list[socket.socket]()
        try:
            for number in range(max(1, count)):
                ends.append(self.take(channel, number))
        except BaseException:
            for end in ends:
                end.close()
            raise
        return ends

    def _keep(self, end: socket.socket) -> None:
        if isinstance(end, Tunnel):
            self._tunnels.append(end)

    def close(self) -> None:
        """Closes the connections that were not taken. Idempotent."""
        while self._pending:
            with contextlib.suppress(Failed, OSError):
                self._pending.popitem()[1].result().close()
        self._pool.shutdown()


class WarmConnections(_Connections):
    """The source's ends."""

    def __init__(self, underlay: Underlay, compressed: bool = False) -> None:
        """Files and images are `compressed` where a tunnel carries them."""
        super().__init__()
        self._underlay, self._compressed = underlay, compressed

    def begin(self, offers: Offers, limit: RateLimit) -> None:
        """Starts to establish connections. Dummy data counts against the move's `limit`."""
        for channel, first in offers.items():
            for number, offer in enumerate((first, *first.more)):
                establish = self._pool.submit(self._establish, channel, offer, limit)
                self._pending[channel, number] = establish

    def _establish(self, channel: Channel, offer: Offer, limit: RateLimit) -> socket.socket:
        try:
            end = connect_from(self._underlay.netns, offer.address, offer.port, _TIMEOUT)
        except OSError as error:
            raise _unreachable(offer.address, error) from None
        try:
            tune(end, sends=channel != Channel.SUMS)
            if is_carried(channel, offer.key):
                compressed = self._compressed and channel != Channel.SUMS
                end = Tunnel(end, offer.key.get_secret_value(), accepts=False, compressed=compressed)
            warm(end, offer.secret.get_secret_value(), limit, *_WARMED.get(channel, (0.0, 0)))
            end.settimeout(None)
            self._keep(end)
        except OSError as error:
            end.close()
            what, why = f"the connection to {offer.address} broke", end.why() if isinstance(end, Tunnel) else ""
            raise Failed(Code.UNREACHABLE, what, why or str(error), "wherry site link") from None
        return end


class OfferedConnections(_Connections):
    """The destination's ends. All that is sent is `sealed`, with a key for each channel."""

    def __init__(self, underlay: Underlay, sealed: bool = False) -> None:
        super().__init__()
        self._underlay, self._sealed = underlay, sealed
        self._listeners: list[socket.socket] = []

    def offer(self, *channels: Channel, streams: int = 1) -> dict[Channel, Offer]:
        """Listens for one connection each, for MEMORY for `streams`. UNREACHABLE when this host has no network."""
        offers = {}
        for channel in channels:
            count = streams if channel == Channel.MEMORY else 1
            key = SecretBytes(os.urandom(_KEY) if self._sealed else b"")
            first, *more = (self._listen(channel, number, key) for number in range(count))
            offers[channel] = replace(first, key=key, more=tuple(more))
        return offers

    def _listen(self, channel: Channel, number: int, key: SecretBytes) -> Offer:
        address, secret = self._underlay.address, os.urandom(32)
        try:
            listener = listen_in(self._underlay.netns, address, _TIMEOUT)
        except OSError as error:
            raise _unreachable(address, error) from None
        self._listeners.append(listener)
        self._pending[channel, number] = self._pool.submit(
            self._accept, listener, channel, secret, key if is_carried(channel, key) else None
        )
        return Offer(address, listener.getsockname()[1], SecretBytes(secret))

    def close(self) -> None:
        for listener in self._listeners:
            with contextlib.suppress(OSError):  # it was closed
                listener.shutdown(socket.SHUT_RDWR)  # ends its accept
        self._listeners = []
        super().close()

    def _accept(
        self, listener: socket.socket, channel: Channel, secret: bytes, key: SecretBytes | None
    ) -> socket.socket:
        deadline = time.monotonic() + _TIMEOUT
        try:
            with listener:
                while True:
                    end, _ = listener.accept()
                    tune(end, sends=channel == Channel.SUMS)
                    if key:
                        end = Tunnel(end, key.get_secret_value(), accepts=True)
                    if admit(end, secret):
                        break
                    end.close()
                    listener.settimeout(max(0.001, deadline - time.monotonic()))
            end.settimeout(None)
            self._keep(end)
        except OSError as error:
            raise _unreachable(self._underlay.address, error) from None
        return end


def is_carried(channel: Channel, key: SecretBytes) -> bool:
    """Whether the connection is to be in a `Tunnel`."""
    return bool(key) and channel != Channel.MEMORY


def _unreachable(address: str, error: OSError) -> Failed:
    return Failed(Code.UNREACHABLE, f"no connection to {address}", str(error), "wherry host list")


class _Warming:
    """A connection that sends dummy data."""

    def __init__(self, near: socket.socket) -> None:
        self._near = near

    def limit_rate(self, rate: float) -> None:
        set_rate_limit(self._near, rate)

    def round_trip(self) -> float:
        return round_trip(self._near)


def warm(near: socket.socket, secret: bytes, limit: RateLimit, trips: float, most: int) -> None:
    """Sends the secret and dummy data for `trips` round trips, and waits until it was received. OSError when the
    connection breaks or stalls."""
    rtt = round_trip(near)
    size = 0 if rtt < _MIN_ROUND_TRIP else min(most, int(trips * rtt * (limit.rate or _ASSUMED) / 8))
    near.settimeout(_TIMEOUT)
    with limit.sending(_Warming(near)) if size else contextlib.nullcontext():
        near.sendall(_HELLO.pack(secret, size))
        near.sendall(os.urandom(size) if isinstance(near, Tunnel) and near.compressed else bytes(size))
        if near.recv(1) != _CONFIRMED:
            raise ConnectionError("closed by the other end")


def admit(far: socket.socket, secret: bytes) -> bool:
    """Reads the data of `warm`, and confirms it. False when the other end does not have the secret, or stalls."""
    far.settimeout(_TIMEOUT)
    try:
        told, size = _HELLO.unpack(_received(far, _HELLO.size))
        if not hmac.compare_digest(told, secret):
            return False
        buffer = bytearray(1 << 18)
        while size:
            got = far.recv_into(buffer, min(size, len(buffer)))
            if not got:
                return False
            size -= got
        far.sendall(_CONFIRMED)
    except OSError:
        return False
    return True


def _received(far: socket.socket, size: int) -> bytes:
    """Exactly `size` bytes."""
    data = b""
    while len(data) < size:
        more = far.recv(size - len(data))
        if not more:
            raise ConnectionError("closed by the other end")
        data += more
    return data
