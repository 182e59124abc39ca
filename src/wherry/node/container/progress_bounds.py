"""Timeouts of the steps of a move, based on progress.

The duration of a step depends on the node's memory, the link and the machine's load, so primarily the time without
progress is bounded. A step makes progress when

- one of its processes is running, runnable (state R) or waiting for a disk (state D), or has used CPU time since the
  last check: a busy machine, on which a step takes ten times as long, causes no timeout;
- the other end of a connection has acknowledged bytes since the last check;
- CRIU has reached its next stage.

A process that is stopped, or waits for a lock that is never released or for a dead child, shows none of these. Checks
are made every CHECK_INTERVAL seconds; a late one counts as MAX_INTERVAL at most, as a machine that left this process
unscheduled did so with the others, too.

    stall(frozen node)             = STALL
    stall(frozen node, sending)    = STALL_SENDING + 8 round trips + time of two times 64 KiB at the paced rate
    stall(a round: the node runs)  = ten times that
    total                          = TOTAL + memory / rate, rate = min(SLOWEST, half of the paced rate)

STALL_SENDING covers three retransmissions in a row (0.2 + 0.4 + 0.8 s). The total bounds a step that is busy for ever:
it assumes a tenth of the throughput of a loaded machine, or half of a slow link, which other streams may share.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from glob import iglob
from pathlib import Path

from wherry.base.errors import Code, Failed
from wherry.node.container.tunnel import wire_of

CHECK_INTERVAL = 0.05
"""Seconds between two checks, and so until a step notices that the move is cancelled."""
MAX_INTERVAL = 0.2
"""Seconds that one check counts at most, however late it is."""
STALL, STALL_SENDING = 1.0, 2.0
TOTAL, SLOWEST = 10.0, 20e6
_RUNNING_NODE = 10
"""Factor by which a step may stall longer while the node runs."""
_TRIPS, _PIECES = 8, 2 * 65536
_TCPI_RTT, _TCPI_BYTES_ACKED, _TCPI_DELIVERED = 68, 120, 192
"""Offsets in struct tcp_info, linux/tcp.h: u32 in microseconds, u64, u32 (segments, those acknowledged out of order
too)."""

ProgressProbe = Callable[[], bool]
"""True when there was progress since the last call."""


def never_cancelled() -> None:
    """The `cancelled` of a step that cannot be cancelled."""


class StallTimeout:
    """The timeout of one step: `check` raises TIMED_OUT when it has expired, or the exception of `cancelled`."""

    def __init__(
        self,
        what: str,
        stall: float,
        total: float,
        *probes: ProgressProbe,
        cancelled: Callable[[], object] = never_cancelled,
    ) -> None:
        self._what, self._stall, self._total = what, stall, total
        self._probes, self._cancelled = probes, cancelled
        self._began = self._last = time.monotonic()
        self._idle = 0.0

    def advance(self) -> None:
        """Records progress that no probe shows, such as a stage of CRIU."""
        self._idle = 0.0

    def check(self) -> None:
        """To be called every CHECK_INTERVAL seconds during the step."""
        self._cancelled()
        now = time.monotonic()
        self._idle += min(now - self._last, MAX_INTERVAL)
        self._last = now
        if any([probe() for probe in self._probes]):  # all are called, as each remembers its last value
            self._idle = 0.0
        if self._idle >= self._stall:
            raise Failed(Code.TIMED_OUT, f"{self._what} stalled", f"no progress for {self._stall:.1f} s")
        if now - self._began > self._total:
            raise Failed(Code.TIMED_OUT, f"{self._what} did not end", f"waited {self._total:.0f} s")


def stall_sending(rate: float | None, rtt: float) -> float:
    """Seconds for which a connection limited to `rate` bit/s (None: unlimited) may stall."""
    return STALL_SENDING + _TRIPS * rtt + (_PIECES * 8 / rate if rate else 0.0)


def while_it_runs(stall: float) -> float:
    """Seconds for which a step may stall while the node runs."""
    return stall * _RUNNING_NODE


def total(memory: int, rate: float | None = None) -> float:
    """Seconds for a step that reads, writes or sends (at `rate` bit/s) `memory` bytes."""
    return TOTAL + memory / min(SLOWEST, (rate or math.inf) / 8 / 2)


@dataclass(frozen=True)
class MoveTimeouts:
    """The timeouts of one move's steps at one host: of a node with `memory` bytes, sent at most at `rate` bit/s."""

    memory: int
    rate: float | None = None

    def more(self, size: int) -> MoveTimeouts:
        """The timeouts of steps that read, write or send so many bytes besides."""
        return replace(self, memory=self.memory + size)

    def of_step(
        self, what: str, *probes: ProgressProbe, cancelled: Callable[[], object] = never_cancelled
    ) -> StallTimeout:
        """The timeout of a step on one host while the node is frozen."""
        return StallTimeout(what, STALL, total(self.memory), *probes, cancelled=cancelled)

    def of_sending(self, what: str, rtt: float, *probes: ProgressProbe, frozen: bool = True) -> StallTimeout:
        """The timeout of a step that sends to the other host."""
        stall = stall_sending(self.rate, rtt)
        return StallTimeout(what, stall if frozen else while_it_runs(stall), total(self.memory, self.rate), *probes)


class Activity:
    """When a move made progress at one host, for steps of the other host. May be asked from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._probes: tuple[ProgressProbe, ...] = ()
        self._last = time.monotonic()

    def watch(self, *probes: ProgressProbe) -> None:
        """Asks these probes from now on, instead of earlier ones."""
        with self._lock:
            self._probes, self._last = probes, time.monotonic()

    def idle(self) -> float:
        """Seconds since a probe saw progress."""
        with self._lock:
            if any([probe() for probe in self._probes]):
                self._last = time.monotonic()
            return time.monotonic() - self._last


def first_of(*probes: ProgressProbe) -> ProgressProbe:
    """A probe that asks these in order, up to the first that sees progress. For probes that cost something."""
    return lambda: any(probe() for probe in probes)


def work_of(pids: Callable[[], Iterable[int]]) -> ProgressProbe:
    """A probe of processes: of any of their threads."""
    before = -1

    def probe() -> bool:
        nonlocal before
        processes = list(pids())
        ticks = sum(int(fields[11]) + int(fields[12]) for fields in map(_stat, processes) if fields)  # utime, stime
        moved, before = ticks > before, ticks
        # on a busy machine a thread may wait for long for a processor
        return moved or any(fields[0] in "RD" for pid in processes for fields in _stats_of_threads(pid) if fields)

    return probe


def _stat(process: int | str) -> list[str]:
    """The fields of /proc/PID/stat behind the name, from the state on (proc(5)); none when it has ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _stats_of_threads(process: int) -> Iterator[list[str]]:
    for directory in iglob(f"/proc/{process}/task/*"):
        yield _stat(directory.removeprefix("/proc/"))


def traffic_of(end: socket.socket) -> ProgressProbe:
    """A probe of a TCP connection; always False once it is closed."""
    before, wire = (-1, -1), wire_of(end)

    def probe() -> bool:
        nonlocal before
        try:
            info = wire.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:
            return False
        now = (*struct.unpack_from("=Q", info, _TCPI_BYTES_ACKED), *struct.unpack_from("=I", info, _TCPI_DELIVERED))
        moved, before = now != before, now
        return moved

    return probe


def round_trip(end: socket.socket) -> float:
    """Smoothed round-trip time of a TCP connection in seconds."""
    info = wire_of(end).getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    (microseconds,) = struct.unpack_from("=I", info, _TCPI_RTT)
    return float(microseconds) / 1e6


def await_exit(process: subprocess.Popen[bytes], timeout: StallTimeout, input: bytes | None = None) -> bytes:
    """Waits for a program to end; returns its standard error, if that is a pipe. Processes that the program forked may
    live on, and keep the pipe open. `input` fits into a pipe."""
    if process.stdin:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(input or b"")
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
    if process.returncode is not None:
        return reap(process)
    death = os.pidfd_open(process.pid)
    try:
        said = _until_death(process, death, timeout)
    finally:
        os.close(death)
    return said + reap(process)


def reap(process: subprocess.Popen[bytes]) -> bytes:
    """Kills a program unless it has ended, and closes its pipes; the rest of its standard error. Idempotent."""
    if process.returncode is None:
        process.kill()
        process.wait()
    said = b""
    if process.stderr and not process.stderr.closed:
        os.set_blocking(process.stderr.fileno(), False)  # its children may keep it open
        said = process.stderr.read() or b""
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
    return said


def _until_death(process: subprocess.Popen[bytes], death: int, timeout: StallTimeout) -> bytes:
    """Returns the output of a program on its standard error when it has ended."""
    said, checked, either = b"", time.monotonic(), select.poll()
    either.register(death, select.POLLIN)
    if process.stderr:
        either.register(process.stderr.fileno(), select.POLLIN)
    while True:
        ready = dict(either.poll(CHECK_INTERVAL * 1000))
        if death in ready:
            process.wait()
            return said
        for errors in ready:
            more = os.read(errors, 1 << 16)
            said += more
            if not more:
                either.unregister(errors)
        if not ready or time.monotonic() - checked >= CHECK_INTERVAL:
            timeout.check()
            checked = time.monotonic()
