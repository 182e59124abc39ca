"""Policy of pre-copy: when to do another round, when to freeze, and when to switch to post-copy.

Pure. Invariant: the rounds end for every program, even a program that dirties memory faster than it can be sent.
"""

from __future__ import annotations

from collections.abc import Sequence

from wherry.model.migration_parameters import MigrationParameters
from wherry.model.records import Round
from wherry.model.throttle import exhausted
from wherry.schedule.dirtying import written_in

MAX_ROUNDS = 16
_SMALL = 2**20
"""Bytes that take less time to send than the freeze takes anyway."""
_GAIN = 0.8
"""Rounds continue while the rest of each is at most this share of its predecessor's."""
_OUTRUN = 0.9
"""Least ratio of dirtied to sent bytes in a round at which a program outruns the rounds."""
PATIENT = 2
"""Factor for the limit of rounds with auto-converge, which throttles the node from round to round."""


def another_round(
    rounds: Sequence[Round],
    limit: int = MAX_ROUNDS,
    parameters: MigrationParameters | None = None,
    written: Sequence[tuple[float, int]] = (),
) -> bool:
    """True when one more round is likely to shorten the downtime. `written` is a sample of the node's writes (see
    `wherry.schedule.dirtying`); with it, mode `auto` looks ahead."""
    parameters = parameters or MigrationParameters()
    if parameters.mode == "stop" or len(rounds) >= limit * (PATIENT if parameters.mode == "auto-converge" else 1):
        return False
    if not rounds:
        return True
    left = _left(rounds[-1])
    if _fits(rounds[-1], parameters):
        return False
    if parameters.mode == "auto-converge":
        return not exhausted(rounds)
    if parameters.may_post_copy and _outruns(rounds):
        return False
    if parameters.mode == "auto" and written and rounds[-1].dirty is not None:
        return _left_by_next(rounds[-1], written) <= _GAIN * left
    if len(rounds) == 1 and rounds[0].dirty is None:
        return True
    before = _left(rounds[-2]) if len(rounds) > 1 else rounds[0].bytes
    return left <= _GAIN * before


def switches_to_post_copy(rounds: Sequence[Round], parameters: MigrationParameters) -> bool:
    """True when the node should resume at its destination and fetch the rest (post-copy) instead of waiting for it."""
    if parameters.mode == "hybrid":
        return bool(rounds) and not _fits(rounds[-1], parameters) and _outruns(rounds)
    return parameters.mode == "post-copy"


def _left_by_next(round: Round, written: Sequence[tuple[float, int]]) -> float:
    """Bytes that the next round would leave: the node's writes while the rest of this one is sent, by the sample, in
    the ratio by which the sample predicted this round."""
    left, rate, foretold = _left(round), _rate(round), written_in(written, round.seconds)
    if not rate:
        return 0.0
    now = left / foretold if foretold else 1.0
    return min(now * written_in(written, left / rate), left)


def _fits(round: Round, parameters: MigrationParameters) -> bool:
    """True when the rest is small, or can be sent within the permitted downtime."""
    left = _left(round)
    return left <= _SMALL or (parameters.downtime is not None and left <= parameters.downtime * _rate(round))


def _outruns(rounds: Sequence[Round]) -> bool:
    """True when the program dirtied nearly as much in the round as was sent, or more. Where that is not counted, what
    this round sent was dirtied in the one before."""
    if rounds[-1].dirty is None:
        return len(rounds) > 1 and rounds[-1].bytes >= _OUTRUN * rounds[-2].bytes
    return _left(rounds[-1]) >= _OUTRUN * rounds[-1].bytes


def _rate(round: Round) -> float:
    """Bytes per second of a round."""
    return round.bytes / round.seconds if round.seconds > 0 else 0.0


def _left(round: Round) -> int:
    """Bytes to send after a round; where the engine cannot count them, those of the round itself."""
    return round.bytes if round.dirty is None else round.dirty
