"""The rate at which a move sends: a budget of its own, and the rest of a link beside it.

The budget leaves a part of a link to the jobs. When they do not use it the link's queue stays empty, and the move takes
most of that part too; when a queue grows, by the round trips of its connections, it keeps to its budget again.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from wherry.node.container.tunnel import wire_of

_SO_MAX_PACING_RATE = 47
"""asm-generic/socket.h; bytes per second as u64. The kernel paces TCP itself, with any queue discipline."""
_POLL_INTERVAL = 0.05
"""Seconds between two looks at the round trips."""
_QUEUE = 0.002
"""A queue grows when a round trip takes so many seconds more than the shortest one. Paced connections send bursts of a
millisecond's data."""
_QUIET, _LONG_QUIET = 5, 80
"""After a queue, so many looks in turn must find none before a move sends more again: each time that it grows anew
twice as many, up to the second number; after as many at the higher rate the first number counts again."""


class RateLimited(Protocol):
    """A sender whose rate can be limited."""

    def limit_rate(self, rate: float) -> None:
        """Limits the rate from now on (bit/s)."""

    def round_trip(self) -> float:
        """Smoothed round-trip time in seconds. OSError when the connection is closed."""


class RateLimit:
    """Divides the rate of a move (bit/s; None: no limit) evenly among its active senders, and `spare` bit/s besides
    while no queue grows."""

    def __init__(self, rate: float | None, spare: float = 0.0) -> None:
        self.rate = rate
        self._spare = spare
        self._lock = threading.Lock()
        self._sending: list[RateLimited] = []
        self._stopped = threading.Event()
        self._shortest = float("inf")
        self._needed, self._quiet = _QUIET, _QUIET

    @contextmanager
    def sending(self, stream: RateLimited) -> Iterator[None]:
        """The sender has its share within the context. Data that is still buffered afterwards is sent at the full
        rate."""
        self._divide([stream], [])
        try:
            yield
        finally:
            self._divide([], [stream])

    def _divide(self, more: list[RateLimited], gone: list[RateLimited]) -> None:
        with self._lock:
            before = bool(self._sending)
            self._sending = [stream for stream in [*self._sending, *more] if stream not in gone]
            if self.rate is None:
                return
            for stream in gone:
                with suppress(OSError):
                    stream.limit_rate(self.rate)
            self._apply(self.rate)
            if self._spare and bool(self._sending) is not before:
                self._stopped.set()
                if self._sending:
                    self._stopped = threading.Event()
                    threading.Thread(target=self._watch, args=(self._stopped,), name="link-queue", daemon=True).start()

    def _apply(self, rate: float) -> None:
        for stream in self._sending:
            with suppress(OSError):  # it was closed, which who sends over it finds; the others have their share
                stream.limit_rate(rate / len(self._sending))

    def _watch(self, stopped: threading.Event) -> None:
        while not stopped.wait(_POLL_INTERVAL):
            with self._lock:
                if stopped.is_set() or self.rate is None:
                    return
                try:
                    self._apply(self.rate + (self._spare if self._is_quiet() else 0.0))
                except OSError:  # a connection was closed, and its sender reports that: nothing is seen any more
                    self._spare = 0.0
                    self._apply(self.rate)
                    return

    def _is_quiet(self) -> bool:
        longest = max(stream.round_trip() for stream in self._sending)
        self._shortest = min(self._shortest, longest)
        if longest - self._shortest <= _QUEUE:
            self._quiet += 1
            if self._quiet >= self._needed + _LONG_QUIET:
                self._needed = _QUIET
        elif self._quiet >= self._needed:  # it grew at the higher rate
            self._quiet, self._needed = 0, min(2 * self._needed, _LONG_QUIET)
        else:
            self._quiet = 0
        return self._quiet >= self._needed


def set_rate_limit(end: socket.socket, rate: float) -> None:
    """Limits the rate of a TCP connection from now on (bit/s)."""
    wire_of(end).setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, struct.pack("=Q", max(1, round(rate / 8))))
