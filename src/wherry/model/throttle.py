"""The slow-down of a container whose rounds of pre-copy do not converge (mode `auto-converge`).

Pure. A round converges when the node writes at most half as fast as is sent. After each round that does not converge,
the node gets a smaller share of its CPU time, in proportion, by at least a fifth and at most half. Invariants: the
share is never below `MIN_SHARE`, and never rises during a move; the rounds end for every node.
"""

from __future__ import annotations

from collections.abc import Sequence

from wherry.model.records import Round

MIN_SHARE = 0.1
"""The smallest share of its CPU time that a node is left."""
_CONVERGES = 0.5
"""Ratio of a round's rest to its sent memory, up to which rounds converge."""
_FASTEST, _SLOWEST = 0.5, 0.8
"""Factors between two shares."""
_GAIN = 0.8
"""At the least share rounds continue while the rest of each is at most this share of its predecessor's."""


def next_share(rounds: Sequence[Round]) -> float:
    """The share of its CPU time that the node gets in the next round."""
    share = _share(rounds[-1]) if rounds else 1.0
    if not rounds or (ratio := _ratio(rounds)) <= _CONVERGES:
        return share
    return max(MIN_SHARE, share * min(max(_CONVERGES / ratio, _FASTEST), _SLOWEST))


def exhausted(rounds: Sequence[Round]) -> bool:
    """True when the node has the least share, and the rest after rounds does not become less any more."""
    if len(rounds) < 2 or _share(rounds[-1]) > MIN_SHARE:
        return False
    return _left(rounds[-1]) > _GAIN * _left(rounds[-2])


def _share(round: Round) -> float:
    return 1.0 if round.share is None else round.share


def _ratio(rounds: Sequence[Round]) -> float:
    """The last round's rest by its sent memory; where the engine does not count the rest, its sent memory by that of
    the round before."""
    last = rounds[-1]
    if last.dirty is not None:
        return last.dirty / max(last.bytes, 1)
    return last.bytes / max(rounds[-2].bytes, 1) if len(rounds) > 1 else 0.0


def _left(round: Round) -> int:
    return round.bytes if round.dirty is None else round.dirty
