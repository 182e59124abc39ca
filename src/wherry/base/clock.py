"""Clocks. Times of record are CLOCK_REALTIME seconds: CRIU hides the gap of a move from a node's CLOCK_MONOTONIC."""

from __future__ import annotations

import time


def now() -> float:
    """Seconds since the epoch, CLOCK_REALTIME."""
    return time.time()


class Stopwatch:
    """Measures named spans from outside the node. `lap(name)` ends the span that began at the last lap."""

    def __init__(self) -> None:
        self.started = now()
        self._last = time.monotonic()
        self.laps: dict[str, float] = {}

    def lap(self, name: str) -> float:
        """Seconds since the last lap, added up under `name`."""
        here = time.monotonic()
        span, self._last = here - self._last, here
        self.laps[name] = self.laps.get(name, 0.0) + span
        return span
