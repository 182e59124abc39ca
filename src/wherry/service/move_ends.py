"""When moves ended, in `steady` time, for the cool-downs of balancing.

Invariant: setting the clock neither ends nor prolongs the cool-down of a move that was seen before. A move's age is
taken from its row when it is seen for the first time: it ended just now, or under an earlier daemon.
"""

from __future__ import annotations

from collections.abc import Sequence

from wherry.base.clock import now, steady
from wherry.model.records import Move


class MoveEndTimes:
    """By move, when it ended. Safe from several threads."""

    def __init__(self) -> None:
        self._ends: dict[str, float] = {}

    def by_id(self, moves: Sequence[Move]) -> dict[str, float]:
        """By id, the ends of those of these moves, the instance's, that have ended."""
        known, here, wall = self._ends, steady(), now()
        ends = {m.id: known.get(m.id, here - max(0.0, wall - m.ended)) for m in moves if m.ended is not None}
        self._ends = ends
        return ends
