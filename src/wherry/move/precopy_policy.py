"""When to send memory once more while the node runs, when to freeze, and when to let it run on before all is sent.

Pure. Invariant: it ends for every program, also for one that dirties memory faster than it can be sent.
"""

from __future__ import annotations

from collections.abc import Sequence

from wherry.model.migration_parameters import MigrationParameters
from wherry.model.objects import Round

MAX_ROUNDS = 8
_SMALL = 2**20
"""Bytes: sending them takes less than the freeze does anyway, at any rate a fabric has."""
_GAIN = 0.8
"""A round is worth its time while it leaves at most this share of what the one before it left."""


_OUTRUN = 0.9
"""A program that dirties this share of what is sent meanwhile, or more, outruns the rounds."""
_SWITCHING = ("post-copy", "hybrid")
PATIENT = 4
"""How many times as many rounds a node gets that is slowed down from round to round until they gain."""


def another_round(rounds: Sequence[Round], limit: int = MAX_ROUNDS, way: MigrationParameters | None = None) -> bool:
    """True when one more round is likely to shorten the downtime."""
    way = way or MigrationParameters()
    if len(rounds) >= limit * (PATIENT if way.mode == "auto-converge" else 1):
        return False
    if not rounds:
        return True
    left = _left(rounds[-1])
    if _fits(rounds[-1], way):
        return False
    if way.mode == "auto-converge":
        return True
    if way.mode in _SWITCHING and _outruns(rounds[-1]):
        return False
    if len(rounds) == 1 and rounds[0].dirty is None:
        return True
    before = _left(rounds[-2]) if len(rounds) > 1 else rounds[0].bytes
    return left <= _GAIN * before


def switches_to_post_copy(rounds: Sequence[Round], way: MigrationParameters) -> bool:
    """True when the node is to run on at its destination and fetch the rest (post-copy), and not to stand for it."""
    if way.mode == "hybrid":
        return bool(rounds) and not _fits(rounds[-1], way) and _outruns(rounds[-1])
    return way.mode == "post-copy"


def _fits(round: Round, way: MigrationParameters) -> bool:
    """True when what is left is sent in no time, or in as much as may pass."""
    left = _left(round)
    return left <= _SMALL or (way.downtime is not None and left <= way.downtime * _rate(round))


def _outruns(round: Round) -> bool:
    """True when the dirty rate over the bandwidth, both over the same round, passes the limit."""
    return _left(round) >= _OUTRUN * round.bytes


def _rate(round: Round) -> float:
    """Bytes per second that were sent in a round."""
    return round.bytes / round.seconds if round.seconds > 0 else 0.0


def _left(round: Round) -> int:
    """Bytes to send after a round; where the engine cannot count them, as many as the round itself had to send."""
    return round.bytes if round.dirty is None else round.dirty
