"""Policy of pre-copy: when to do another round, when to freeze, and when to switch to post-copy.

Pure. Invariant: the rounds end for every program, even one that dirties memory faster than it can be sent.
"""

from __future__ import annotations

from collections.abc import Sequence

from wherry.model.migration_parameters import MigrationParameters
from wherry.model.records import Round

MAX_ROUNDS = 8
_SMALL = 2**20
"""Bytes that take less time to send than the freeze takes anyway."""
_GAIN = 0.8
"""Rounds go on while each leaves at most this share of what its predecessor left."""
_OUTRUN = 0.9
"""Least ratio of dirtied to sent bytes in a round at which a program outruns the rounds."""
_SWITCHING = ("post-copy", "hybrid")
PATIENT = 4
"""Factor for the limit of rounds with auto-converge, which throttles the node from round to round."""


def another_round(
    rounds: Sequence[Round], limit: int = MAX_ROUNDS, parameters: MigrationParameters | None = None
) -> bool:
    """True when one more round is likely to shorten the downtime."""
    parameters = parameters or MigrationParameters()
    if len(rounds) >= limit * (PATIENT if parameters.mode == "auto-converge" else 1):
        return False
    if not rounds:
        return True
    left = _left(rounds[-1])
    if _fits(rounds[-1], parameters):
        return False
    if parameters.mode == "auto-converge":
        return True
    if parameters.mode in _SWITCHING and _outruns(rounds[-1]):
        return False
    if len(rounds) == 1 and rounds[0].dirty is None:
        return True
    before = _left(rounds[-2]) if len(rounds) > 1 else rounds[0].bytes
    return left <= _GAIN * before


def switches_to_post_copy(rounds: Sequence[Round], parameters: MigrationParameters) -> bool:
    """True when the node should resume at its destination and fetch the rest (post-copy) instead of waiting for it."""
    if parameters.mode == "hybrid":
        return bool(rounds) and not _fits(rounds[-1], parameters) and _outruns(rounds[-1])
    return parameters.mode == "post-copy"


def _fits(round: Round, parameters: MigrationParameters) -> bool:
    """True when the rest is small, or can be sent within the permitted downtime."""
    left = _left(round)
    return left <= _SMALL or (parameters.downtime is not None and left <= parameters.downtime * _rate(round))


def _outruns(round: Round) -> bool:
    """True when the program dirtied nearly as much in the round as was sent, or more."""
    return _left(round) >= _OUTRUN * round.bytes


def _rate(round: Round) -> float:
    """Bytes per second of a round."""
    return round.bytes / round.seconds if round.seconds > 0 else 0.0


def _left(round: Round) -> int:
    """Bytes to send after a round; where the engine cannot count them, those of the round itself."""
    return round.bytes if round.dirty is None else round.dirty
