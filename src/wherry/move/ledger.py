"""The ledger of moves, made from their rows, and the bounds that it gives to the next forecast.

Pure. Invariant: only moves that are done, were whole in one daemon, and had a forecast are counted; a forecast of an
earlier version, which had no bounds, is no measure of the present one.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median, quantiles

from wherry.model.ledger import Foretold, Ledger, LedgerEntry, Spread
from wherry.model.records import Job, JobState, Move, Phase

_ENOUGH = 8
"""Forecasts from which on their errors give the bounds."""
_WIDE = (0.5, 2.0)
"""Bounds, as multiples of the forecast, without them."""

_LEAST_TRUST = 0.25
"""Least share of a promise that is counted on: else no plan would be tried again, and nothing learned."""
_UNTOLD = "it was not measured, and its duration was not given before"
Between = tuple[float, float]


def ledger(moves: Sequence[Move], jobs: Sequence[Job] = ()) -> Ledger:
    """The ledger of these moves and of the jobs that they moved."""
    entries = tuple(entry for move in moves if (entry := _entry(move, jobs)))
    return Ledger(
        entries=entries,
        total=spread([entry.total for entry in entries]),
        downtime=spread([entry.downtime for entry in entries]),
        gain=spread(_gains(moves, jobs)),
    )


def trust(moves: Sequence[Move], jobs: Sequence[Job]) -> float:
    """The share of the predicted gain of balancing that was reached, more than 0 and at most 1; 1 before the first
    results."""
    ratios = [_ratio(gain) for gain in _gains(moves, jobs)]
    return min(max(median(ratios), _LEAST_TRUST), 1.0) if len(ratios) >= _ENOUGH else 1.0


def bounds(moves: Sequence[Move], seconds: float, downtime: float) -> tuple[Between, Between, int]:
    """The bounds of the total and of the downtime, which eight of ten moves keep to if they are as these were, and how
    many forecasts tell so; 0: they are assumed."""
    entries = ledger(moves).entries
    if len(entries) < _ENOUGH:
        return _around(seconds, *_WIDE), _around(downtime, *_WIDE), 0
    totals, downtimes = [_ratio(entry.total) for entry in entries], [_ratio(entry.downtime) for entry in entries]
    return _bounds(seconds, totals), _bounds(downtime, downtimes), len(entries)


def spread(figures: Sequence[Foretold]) -> Spread:
    """The spread of some figures' errors."""
    if not figures:
        return Spread(number=0)
    ratios = [_ratio(figure) for figure in figures]
    bounded = [figure.between[0] <= figure.came <= figure.between[1] for figure in figures if figure.between]
    return Spread(
        number=len(figures),
        median=median(ratios),
        error=_tenths([abs(ratio - 1) for ratio in ratios])[-1],
        within=sum(bounded) / len(bounded) if bounded else None,
    )


def _entry(move: Move, jobs: Sequence[Job]) -> LedgerEntry | None:
    told = move.predicted
    if told is None or told.downtime_between is None or told.downtime <= 0 or told.seconds <= 0:
        return None
    if move.phase != Phase.DONE or move.error or move.downtime is None or move.total is None:
        return None
    return LedgerEntry(
        move=move.id,
        node=move.node,
        created=move.created,
        mode=told.mode,
        engine=told.engine,
        basis=told.basis,
        total=Foretold(foretold=told.seconds, between=told.seconds_between, came=move.total),
        downtime=Foretold(foretold=told.downtime, between=told.downtime_between, came=move.downtime),
        gain=(gain := _gain(move, jobs)),
        unmeasured="" if gain or not move.gain else move.gain.unmeasured or _UNTOLD,
    )


def _gain(move: Move, jobs: Sequence[Job]) -> Foretold | None:
    """The gain of a job: by its end, when its user had given its duration without moves, else by its measured speed."""
    if move.gain is None or move.gain.before <= move.gain.after:
        return None
    foretold = move.gain.before - move.gain.after
    for job in jobs:
        began, ended = job.started or job.created, job.ended or 0.0
        known = job.expected is not None and job.state == JobState.ENDED
        if job.cluster == move.cluster and known and began <= move.created <= ended:
            took = ended - move.created
            return Foretold(foretold=foretold, came=move.gain.before - took)
    if move.gain.measured is None:
        return None
    return Foretold(foretold=foretold, came=move.gain.before * (1 - move.gain.measured) - move.gain.cost)


def _gains(moves: Sequence[Move], jobs: Sequence[Job]) -> list[Foretold]:
    """The gains of plans that were carried out, each once, from its first move on, however many it had."""
    found = dict[tuple[str, float, float], Move]()
    for move in moves:
        if move.gain and move.phase == Phase.DONE and not move.error:
            found.setdefault((move.cluster, move.gain.before, move.gain.after), move)
    return [gain for move in found.values() if (gain := _gain(move, jobs))]


def _ratio(figure: Foretold) -> float:
    return figure.came / figure.foretold


def _bounds(value: float, ratios: Sequence[float]) -> Between:
    """The forecast itself is always within."""
    tenths = _tenths(ratios)
    return _around(value, min(tenths[0], 1.0), max(tenths[-1], 1.0))


def _around(value: float, low: float, high: float) -> Between:
    return value * low, value * high


def _tenths(values: Sequence[float]) -> list[float]:
    """The nine values that divide them into tenths, those of a single value too."""
    return quantiles(values if len(values) > 1 else [*values, *values], n=10, method="inclusive")
