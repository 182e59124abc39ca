"""What a move is expected to cost, from the node's memory and from the moves that were made here.

Pure. Invariant: the basis says what the numbers stand on; without a record of earlier moves it says that they are
assumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from wherry.model.objects import Move, Phase, Prediction

_RATE = 500e6
"""Bytes per second when nothing was measured yet: dump, copy and restore of memory over TCP on one machine."""
_BEFORE = 1.0
"""Seconds of preparation and clearing up when nothing was measured yet."""
_RECENT = 20
_LEFT = 0.1
"""Share of the memory that rounds are assumed to leave for the freeze."""


def estimate(size: int, overhead: float, can_round: bool, moves: Sequence[Move]) -> Prediction:
    """Prediction for `size` bytes and `overhead` seconds of a freeze beside sending; `moves` are earlier ones."""
    past = [m for m in moves if m.phase == Phase.DONE and not m.error and m.downtime and m.total and m.bytes][-_RECENT:]
    rate, before, basis = _RATE, _BEFORE, "assumed rates; no move was made here yet"
    if past:
        rates = [m.bytes / m.phases["transfer"] for m in past if m.phases.get("transfer")]
        rate = median(rates) if rates else _RATE
        before = median(max((m.total or 0) - (m.downtime or 0), 0) for m in past)
        overhead = median(max((m.downtime or 0) - m.phases.get("transfer", 0), 0) for m in past)
        basis = f"the last {len(past)} moves" if len(past) > 1 else "the last move"
    rounds = 2 if can_round else 0
    frozen = size * _LEFT if rounds else size
    downtime = overhead + frozen / rate
    return Prediction(
        bytes=int(size + (frozen if rounds else 0)),
        rounds=rounds,
        seconds=before + downtime + (size / rate if rounds else 0),
        downtime=downtime,
        basis=basis,
    )
