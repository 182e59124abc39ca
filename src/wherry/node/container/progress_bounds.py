"""Bounds of the steps of a move during which a node stands still.

What is bounded first is the time without progress, as the whole time of a step depends on the node's memory, on the
link and on what else the machine does. A step makes progress when

- one of its processes runs, waits for a CPU (state R) or for a disk (state D), or has used CPU time since the last
  look: so a busy machine, where a step takes ten times as long, is no reason to give up;
- the other end of a connection has acknowledged bytes since the last look;
- CRIU has reached its next stage.

A process that is stopped, waits for a lock that nobody releases or for a child that has died does none of these. A look
is taken every LOOK seconds; a look that comes late counts as LATE at most, since a machine that did not run this
process did not run the others either.

    stall(frozen node)             = STALL
    stall(frozen node, sending)    = STALL_SENDING + 8 round trips + time of two times 64 KiB at the paced rate
    stall(a round: the node runs)  = ten times that
    total                          = TOTAL + memory / rate, rate = min(SLOWEST, half of the paced rate)

STALL_SENDING covers three retransmissions in a row (0.2 + 0.4 + 0.8 s). The total is the backstop for a step that is
busy for ever: a tenth of what a loaded machine does, or half of a slow link, as what is sent may share it.
"""

from __future__ import annotations

import math
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from wherry.base.errors import Code, Failed

LOOK = 0.05
"""Seconds between two looks, and so until a step notices that the move is cancelled."""
LATE = 0.2
STALL, STALL_SENDING = 1.0, 2.0
TOTAL, SLOWEST = 10.0, 20e6
_RUNNING_NODE = 10
"""How many times longer a step may stall while the node runs."""
_TRIPS, _PIECES = 8, 2 * 65536
_TCPI_RTT, _TCPI_BYTES_ACKED, _TCPI_DELIVERED = 68, 120, 192
"""Offsets in struct tcp_info, linux/tcp.h: u32 in microseconds, u64, u32 (segments, those acknowledged out of order
too)."""

Sign = Callable[[], bool]
"""True when there was progress since it was called last."""


def unasked() -> None:
    """For a step that nobody cancels."""


class Bound:
    """The bound of one step. `look` raises TIMED_OUT when it is over, or what `cancelled` raises."""

    def __init__(
        self, what: str, stall: float, total: float, *signs: Sign, cancelled: Callable[[], object] = unasked
    ) -> None:
        self._what, self._stall, self._total = what, stall, total
        self._signs, self._cancelled = signs, cancelled
        self._began = self._last = time.monotonic()
        self._idle = 0.0

    def advance(self) -> None:
        """Progress that no sign shows, such as a stage of CRIU's."""
        self._idle = 0.0

    def look(self) -> None:
        """To be called every LOOK seconds while the step goes on."""
        self._cancelled()
        now = time.monotonic()
        self._idle += min(now - self._last, LATE)
        self._last = now
        if any([sign() for sign in self._signs]):  # each is asked: it remembers what it saw
            self._idle = 0.0
        if self._idle >= self._stall:
            raise Failed(Code.TIMED_OUT, f"{self._what} stood still", f"no progress for {self._stall:.1f} s")
        if now - self._began > self._total:
            raise Failed(Code.TIMED_OUT, f"{self._what} did not end", f"waited {self._total:.0f} s")


def stall_sending(rate: float | None, rtt: float) -> float:
    """Seconds for which a connection paced to `rate` bit/s (None: not) may carry nothing."""
    return STALL_SENDING + _TRIPS * rtt + (_PIECES * 8 / rate if rate else 0.0)


def while_it_runs(stall: float) -> float:
    """The bound of a step that stalls while the node runs."""
    return stall * _RUNNING_NODE


def total(memory: int, rate: float | None = None) -> float:
    """Seconds for a step that reads, writes or, at `rate` bit/s, sends so many bytes."""
    return TOTAL + memory / min(SLOWEST, (rate or math.inf) / 8 / 2)


def work_of(pids: Callable[[], Iterable[int]]) -> Sign:
    """Progress of processes."""
    before = -1

    def look() -> bool:
        nonlocal before
        busy, ticks = False, 0
        for pid in pids():
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            busy = busy or fields[0] in "RD"
            ticks += int(fields[11]) + int(fields[12])  # utime and stime of all its threads (proc(5))
        moved, before = ticks > before, ticks
        return busy or moved

    return look


def traffic_of(end: socket.socket) -> Sign:
    """Progress of what is sent over a TCP connection; none once it is closed."""
    before = (-1, -1)

    def look() -> bool:
        nonlocal before
        try:
            info = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:
            return False
        now = (*struct.unpack_from("=Q", info, _TCPI_BYTES_ACKED), *struct.unpack_from("=I", info, _TCPI_DELIVERED))
        moved, before = now != before, now
        return moved

    return look


def round_trip(end: socket.socket) -> float:
    """Seconds of a round trip over a TCP connection, smoothed."""
    (microseconds,) = struct.unpack_from("=I", end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256), _TCPI_RTT)
    return float(microseconds) / 1e6


def said_at_end(process: subprocess.Popen[bytes], bound: Bound, input: bytes | None = None) -> bytes:
    """Waits for the end of a program; what it wrote to its standard error, when that is a pipe."""
    while True:
        try:
            return process.communicate(input, timeout=LOOK)[1] or b""
        except subprocess.TimeoutExpired:
            input = None
            bound.look()
