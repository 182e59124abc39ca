"""Clocks. Recorded times are CLOCK_REALTIME, which survives restarts but can be set; durations are measured with
CLOCK_MONOTONIC."""

from __future__ import annotations

import time


def now() -> float:
    """Seconds since the epoch, CLOCK_REALTIME."""
    return time.time()


_EPOCH = time.time() - time.monotonic()


def steady() -> float:
    """As `now` when this process began, and counting from there by CLOCK_MONOTONIC: setting the clock changes nothing.
    Comparable within one process only."""
    return _EPOCH + time.monotonic()


def since_boot() -> float:
    """Seconds since the machine started, CLOCK_BOOTTIME, as the start times of processes are counted."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Stopwatch:
    """Measures consecutive named spans. `lap(name)` ends the span that began at the last lap."""

    def __init__(self) -> None:
        self._began = self._last = time.monotonic()
        self.laps: dict[str, float] = {}

    def lap(self, name: str) -> float:
        """Seconds since the last lap, which are also added to `laps[name]`."""
        here = time.monotonic()
        span, self._last = here - self._last, here
        self.laps[name] = self.laps.get(name, 0.0) + span
        return span

    def total(self) -> float:
        """Seconds since the stopwatch was made."""
        return time.monotonic() - self._began
