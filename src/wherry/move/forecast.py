"""Forecast of a move's cost, from the node's memory and earlier moves.

Pure. Invariant: `basis` names the source of the numbers; without earlier moves it says that rates are assumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import linear_regression, median

from wherry.model.records import Move, Phase, Prediction

_RATE = 500e6
"""Assumed bytes per second without measurements: dump, copy and restore of memory over TCP on one machine."""
_BEFORE = 1.0
"""Assumed seconds of preparation and cleanup without measurements."""
_RECENT = 20
"""Number of past moves that are considered."""
_APART = 64 * 2**20
"""Least difference of moves in bytes from which a rate is fitted; below it, the noise of a freeze dominates."""
_LEFT = 0.1
"""Assumed share of the memory that rounds leave for the freeze."""


def forecast(
    size: int, overhead: float, can_round: bool, moves: Sequence[Move], bandwidth: float | None = None
) -> Prediction:
    """Prediction for `size` bytes and a freeze with `overhead` seconds beside sending. `moves` are earlier ones over
    the same links, `bandwidth` is the move's rate in bit/s (None: unlimited)."""
    past = [m for m in moves if m.phase == Phase.DONE and not m.error and m.downtime and m.total and m.bytes][-_RECENT:]
    most = _RATE if bandwidth is None else min(_RATE, bandwidth / 8)
    rate, before, basis = most, _BEFORE, "assumed rates, as there are no earlier moves"
    if past:
        rate, overhead = _fit([(_frozen_bytes(m), m.downtime or 0) for m in past], most)
        rate = min(rate, most)
        before = median(max((m.total or 0) - (m.downtime or 0), 0) for m in past)
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


def _fit(points: list[tuple[int, float]], assumed: float) -> tuple[float, float]:
    """Fits rate (bytes per second) and overhead (seconds) to downtimes by frozen bytes.

    A least-squares line where sizes differ enough; else the median overhead at the assumed rate.
    """
    sizes, times = [size for size, _ in points], [time for _, time in points]
    if max(sizes) - min(sizes) >= _APART:
        line = linear_regression(sizes, times)
        if line.slope > 0:
            return 1 / line.slope, max(line.intercept, 0.0)
    return assumed, median(max(time - size / assumed, 0.0) for size, time in points)


def _frozen_bytes(move: Move) -> int:
    return move.bytes - sum(round.bytes for round in move.rounds)
