"""Clocks. Recorded times are CLOCK_REALTIME, which survives restarts; durations are measured with CLOCK_MONOTONIC."""

from __future__ import annotations

import time


def now() -> float:
    """Seconds since the epoch, CLOCK_REALTIME."""
    return time.time()


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
