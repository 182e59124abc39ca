"""Rates of the counters of nodes and links, from two looks of pages.

Invariant: only objects that were just shown to a caller are looked up, so nobody learns of another's.
"""

from __future__ import annotations

import time

_MAX_COUNTERS, _MIN_INTERVAL, _FRESH = 4096, 0.5, 4.0
"""Counters that are remembered; seconds between two looks that tell a rate, and for which one look serves all pages."""


class Rates:
    """Used from one event loop."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[str, float, float]] = {}
        """Place, time and value at the last look."""
        self._rates: dict[str, float] = {}

    def is_fresh(self, name: str, place: str = "") -> bool:
        """True when a page looked just now, so that no other need to; a first look, which gives no rate, ages soon."""
        before, lasts = self._seen.get(name), _FRESH if name in self._rates else _MIN_INTERVAL
        return before is not None and before[0] == place and time.monotonic() - before[1] < lasts

    def known(self, name: str) -> float | None:
        """The rate of the last look."""
        return self._rates.get(name)

    def of(self, name: str, value: float | None, place: str = "") -> float | None:
        """By how much a second the value grew since the last look; None: not known yet. At another place it begins
        anew, and where the value is None it is forgotten."""
        if value is None:
            self._seen.pop(name, None)
            self._rates.pop(name, None)
            return None
        now, before = time.monotonic(), self._seen.get(name)
        if before and before[0] == place and value >= before[2]:
            if now - before[1] < _MIN_INTERVAL:
                return self._rates.get(name)
            self._rates[name] = (value - before[2]) / (now - before[1])
        else:
            self._rates.pop(name, None)
        self._seen[name] = (place, now, value)
        while len(self._seen) > _MAX_COUNTERS:
            oldest = next(iter(self._seen))
            del self._seen[oldest]
            self._rates.pop(oldest, None)
        return self._rates.get(name)
