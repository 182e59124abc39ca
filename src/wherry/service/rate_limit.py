"""Bounds how often somebody may ask: a bucket of `burst` requests for each name, refilled at `rate` a second.

Invariant: a full bucket is forgotten, so the memory is bounded by who asked lately.
"""

from __future__ import annotations

import ipaddress
import threading
import time

_KEPT = 4096
"""Buckets beyond which the full ones are looked for and forgotten."""


class RateLimit:
    """Safe from several threads."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst = rate, burst
        self._lock = threading.Lock()
        self._buckets: dict[str, tuple[float, float]] = {}
        """The remaining requests, and when."""

    def take(self, name: str) -> bool:
        """Takes one request out of the bucket; False when it is empty."""
        now = time.monotonic()
        with self._lock:
            left, since = self._buckets.get(name, (self._burst, now))
            left = min(self._burst, left + (now - since) * self._rate)
            taken = left >= 1.0
            self._buckets[name] = (left - taken, now)
            if len(self._buckets) > _KEPT:
                full = {key for key, (had, at) in self._buckets.items() if had + (now - at) * self._rate >= self._burst}
                for key in full:
                    del self._buckets[key]
            return taken


def source_of(address: str) -> str:
    """One source of requests: an IPv4 address, or an IPv6 /64, which one machine has to itself."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        return str(found.ipv4_mapped or ipaddress.ip_network((found, 64), strict=False))
    return str(found)
