"""How much of its memory a node writes in a time, from a sample, and how much rounds of pre-copy leave of it.

Pure. A sample is a sequence of (seconds since a look, bytes of distinct pages written since then), both growing.
"""

from __future__ import annotations

from collections.abc import Sequence

_ROUNDS = 8
"""Rounds after which the rest changes no more."""


def written_in(written: Sequence[tuple[float, int]], seconds: float) -> float:
    """Bytes that are written in these seconds: between the points of the sample on straight lines, and beyond the last
    one as fast as before it."""
    if not written:
        return 0.0
    points = [(0.0, 0), *written]
    upper = next((i for i, (time, _) in enumerate(points) if i and seconds <= time), len(points) - 1)
    (since, before), (until, then) = points[upper - 1], points[upper]
    slope = (then - before) / (until - since) if until > since else 0.0
    return max(before + slope * (seconds - since), 0.0)


def left_by_rounds(size: int, rate: float, written: Sequence[tuple[float, int]]) -> float:
    """Bytes that rounds at `rate` bytes per second leave of `size` bytes for the freeze."""
    left = float(size)
    for _ in range(_ROUNDS):
        left = min(written_in(written, left / rate), left)
    return left
