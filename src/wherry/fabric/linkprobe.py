"""What a link does, measured from outside of whatever emulates it: by ping, and by TCP that fills it.

Invariant: it measures between two hosts, so what it gives is what a node gets; the emulator's figures take no part.
"""

from __future__ import annotations

import functools
import re
import socket
import subprocess
import threading
import time

from wherry.fabric import links, namespaces
from wherry.fabric.protocol import LinkMeasure

End = tuple[str, str]
"""Path of a host's namespace, and its address."""
_STREAMS = 4
_SECONDS = 1.5
"""Of TCP that are counted, after it has had time to find its pace."""
_MEAN = re.compile(r"= [\d.]+/([\d.]+)/")


def measure(one: End, other: End, bandwidth: bool) -> LinkMeasure:
    """The latency; and the bandwidth in each direction when asked for."""
    latency = _latency(one[0], other[1], count=4)
    if not bandwidth or latency is None:
        return LinkMeasure(latency=latency)
    return LinkMeasure(latency=latency, there=_bandwidth(one, other, latency), back=_bandwidth(other, one, latency))


def _latency(netns: str, address: str, count: int) -> float | None:
    """Half of the mean round trip in seconds; None when nothing comes back. A first ping, for ARP, does not count."""
    ping = functools.partial(subprocess.run, capture_output=True, text=True, timeout=200)
    namespaces.inside(netns, lambda: ping(["ping", "-q", "-c1", "-W1", address]))
    said = namespaces.inside(netns, lambda: ping(["ping", "-q", "-i0.05", f"-c{count}", "-W1", address])).stdout
    found = _MEAN.search(said)
    return float(found[1]) / 2e3 if found else None


def _bandwidth(source: End, sink: End, latency: float) -> float | None:
    """Bits per second on the wire while TCP fills it; None when no connection could be made or it broke."""
    try:
        pairs = _connect(source, sink, timeout=5 + 10 * latency)
    except OSError:
        return None
    warm = 0.5 + 40 * latency  # slow start, and the first losses
    until = time.monotonic() + warm + _SECONDS
    threads = [threading.Thread(target=_send, args=(out, until), daemon=True) for out, _ in pairs]
    threads += [threading.Thread(target=_drain, args=(into,), daemon=True) for _, into in pairs]
    for thread in threads:
        thread.start()
    time.sleep(warm)
    before, began = _received(sink), time.monotonic()
    time.sleep(_SECONDS)
    received, seconds = _received(sink) - before, time.monotonic() - began
    for end in (end for pair in pairs for end in pair):
        end.close()
    return 8 * received / seconds if received else None


def _received(sink: End) -> int:
    return links.inside(sink[0], lambda ip: ip.received("up0"))


def _connect(source: End, sink: End, timeout: float) -> list[tuple[socket.socket, socket.socket]]:
    pairs = []
    with namespaces.inside(sink[0], lambda: socket.create_server((sink[1], 0))) as server:
        server.settimeout(timeout)
        address = server.getsockname()
        for _ in range(_STREAMS):
            out = namespaces.inside(source[0], lambda: socket.create_connection(address, timeout=timeout))
            pairs.append((out, server.accept()[0]))
    return pairs


def _send(out: socket.socket, until: float) -> None:
    data = bytes(1 << 17)
    try:
        out.settimeout(1.0)
        while time.monotonic() < until:
            out.send(data)
    except OSError:  # closed by who measures, or nothing comes through
        return


def _drain(into: socket.socket) -> None:
    buffer = bytearray(1 << 18)
    try:
        while into.recv_into(buffer):
            continue
    except OSError:
        return
