"""Measures a link from outside its emulator: latency by timestamped datagrams, bandwidth by TCP streams that fill it.

Invariant: both ends are hosts, so the figures are those of nodes, and independent of the emulator's counters.
"""

from __future__ import annotations

import contextlib
import socket
import statistics
import struct
import threading
import time

from wherry.fabric import named_netns, netns_links
from wherry.fabric.protocol import LinkMeasure
from wherry.model.spec.fabric import DirectionSpec

End = tuple[str, str]
"""Path of a host's namespace, and its address."""
_STREAMS = 4
_SECONDS = 1.5
"""Duration of a bandwidth measurement, after the warm-up."""
_DATAGRAMS, _INTERVAL = 9, 0.02
"""Datagrams per direction, and seconds between two."""
_SLACK = 2.0
"""Seconds beyond the declared latency after which a datagram counts as lost."""
_ATTEMPTS, _STEP = 3, 500_000
"""How often a measurement is tried while CLOCK_REALTIME is set by more than so many nanoseconds during it. Slewing, as
NTP does (at most 500 ppm), changes a delay by less than its thousandth, and is no reason."""
_HELLO_INTERVAL = 0.1
_HELLO = b"hello"
_SO_RCVBUFFORCE, _SO_TIMESTAMPNS = 33, 35
"""asm-generic/socket.h. The timestamp is a struct timespec of CLOCK_REALTIME."""


def measure(one: End, other: End, declared: tuple[DirectionSpec, DirectionSpec], bandwidth: bool) -> LinkMeasure:
    """The latency and, with `bandwidth`, the throughput in each direction. `declared` bounds the waits."""
    trip = sum((way.latency or 0) + (way.jitter or 0) for way in declared)
    latency, latency_back = _latency(one, other, trip), _latency(other, one, trip)
    if not bandwidth or latency is None or latency_back is None:
        return LinkMeasure(latency=latency, latency_back=latency_back)
    mean = (latency + latency_back) / 2
    return LinkMeasure(
        latency=latency,
        latency_back=latency_back,
        there=_bandwidth(one, other, mean),
        back=_bandwidth(other, one, mean),
    )


def delays(source: End, sink: End, count: int, pause: float, trip: float) -> list[float]:
    """One-way delays in seconds of the datagrams that arrived, of `count` sent `pause` seconds apart.

    `trip` is the longest round trip of the link. Both ends share one clock, and the kernel timestamps the arrival, so a
    late reader does not falsify the delay. The kernel has only CLOCK_REALTIME for that, which can be set: datagrams
    during which it was set are sent again.
    """
    for _ in range(_ATTEMPTS):
        offset, began = _wall_offset(), time.monotonic_ns()
        found = _delays(source, sink, count, pause, trip)
        if abs(_wall_offset() - offset) < _STEP + (time.monotonic_ns() - began) // 1000:
            return found
    return []


def _wall_offset() -> int:
    """CLOCK_REALTIME less CLOCK_MONOTONIC in nanoseconds: the closest of three looks, as a thread may have to wait
    between the two clocks."""
    looks = []
    for _ in range(3):
        before = time.monotonic_ns()
        wall = time.clock_gettime_ns(time.CLOCK_REALTIME)
        after = time.monotonic_ns()
        looks.append((after - before, wall - (before + after) // 2))
    return min(looks)[1]


def _delays(source: End, sink: End, count: int, pause: float, trip: float) -> list[float]:
    with _datagram_socket(sink) as receiving, _datagram_socket(source) as sending:
        receiving.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        receiving.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 1024 * (count + 100))
        receiving.bind((sink[1], 0))
        sending.connect(receiving.getsockname())
        if not _reached(sending, receiving, _SLACK + 2 * trip):
            return []
        for _ in range(count):
            sending.send(time.clock_gettime_ns(time.CLOCK_REALTIME).to_bytes(8, "big"))
            time.sleep(pause)
        found, deadline = list[float](), time.monotonic() + _SLACK + trip
        while len(found) < count and (left := deadline - time.monotonic()) > 0:
            receiving.settimeout(left)
            try:
                data, extra, _, _ = receiving.recvmsg(8, 64)
            except TimeoutError:
                break
            if data != _HELLO:
                seconds, more = struct.unpack("=qq", extra[0][2])
                found.append((seconds * 10**9 + more - int.from_bytes(data, "big")) * 1e-9)
        return found


def _datagram_socket(end: End) -> socket.socket:
    return named_netns.inside(end[0], lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))


def _reached(sending: socket.socket, receiving: socket.socket, patience: float) -> bool:
    """True when a datagram arrives. The first ones wait for ARP, and are lost when ARP has to be retried."""
    receiving.settimeout(_HELLO_INTERVAL)
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        sending.send(_HELLO)
        with contextlib.suppress(TimeoutError):
            receiving.recv(8)
            return True
    return False


def _latency(source: End, sink: End, trip: float) -> float | None:
    """The median one-way delay in seconds; None when nothing comes through."""
    try:
        found = delays(source, sink, _DATAGRAMS, _INTERVAL, trip)
    except OSError:  # no route, as while one of the hosts is down
        return None
    return statistics.median(found) if found else None


def _bandwidth(source: End, sink: End, latency: float) -> float | None:
    """Bits per second on the wire while TCP fills it; None when a connection failed or broke."""
    with contextlib.ExitStack() as opened:
        try:
            pairs = _connect(source, sink, 5 + 10 * latency, opened)
        except OSError:
            return None
        return _filled(pairs, sink, warm=0.5 + 40 * latency)  # slow start, and the first losses


def _filled(pairs: list[tuple[socket.socket, socket.socket]], sink: End, warm: float) -> float | None:
    """Bits per second received while all connections send, after `warm` seconds of warm-up."""
    until = time.monotonic() + warm + _SECONDS
    threads = [threading.Thread(target=_send, args=(out, until), daemon=True) for out, _ in pairs]
    threads += [threading.Thread(target=_drain, args=(into,), daemon=True) for _, into in pairs]
    for thread in threads:
        thread.start()
    time.sleep(warm)
    before, began = _received(sink), time.monotonic()
    time.sleep(_SECONDS)
    received, seconds = _received(sink) - before, time.monotonic() - began
    return 8 * received / seconds if received else None


def _received(sink: End) -> int:
    return netns_links.inside(sink[0], lambda ip: ip.byte_counters("up0")[0])


def _connect(
    source: End, sink: End, timeout: float, opened: contextlib.ExitStack
) -> list[tuple[socket.socket, socket.socket]]:
    """The connections, which `opened` closes, even if a later one fails."""
    pairs = []
    with named_netns.inside(sink[0], lambda: socket.create_server((sink[1], 0))) as server:
        server.settimeout(timeout)
        address = server.getsockname()
        for _ in range(_STREAMS):
            out = named_netns.inside(source[0], lambda: socket.create_connection(address, timeout=timeout))
            opened.enter_context(out)
            pairs.append((out, opened.enter_context(server.accept()[0])))
    return pairs


def _send(out: socket.socket, until: float) -> None:
    data = bytes(1 << 17)
    try:
        out.settimeout(1.0)
        while time.monotonic() < until:
            out.send(data)
    except OSError:  # closed at the end of the measurement, or stalled
        return


def _drain(into: socket.socket) -> None:
    buffer = bytearray(1 << 18)
    try:
        while into.recv_into(buffer):
            continue
    except OSError:
        return
