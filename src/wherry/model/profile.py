"""What was measured of a running job, from outside: who computes, who waits, who sends how much to whom.

Shares are of time, 0 to 1. Rates are per second of the measured window.
"""

from __future__ import annotations

from wherry.model.objects import Record


class Flow(Record):
    """What one node sends to another: TCP frames with data, as they leave it, their bytes, and the turns, per second.

    A turn is a frame that came as an answer: the target had sent to the source since the one before. A stream of
    messages one way has many frames and one turn; only for turns can the target have waited for the whole way. Where
    the two are near each other, turns are not counted and every frame is taken for one.
    """

    source: str
    target: str
    messages: float
    bytes: float
    turns: float


class RankLoad(Record):
    """One rank: the CPUs it used, and the shares of its time in which it computed and waited."""

    rank: int
    node: str
    cpu: float
    computing: float
    waiting: float


class NodeLoad(Record):
    """One node: the same for its ranks together, and the share of time for which its CPU limit held it back."""

    node: str
    host: str
    ranks: int
    cpu: float
    computing: float
    waiting: float
    throttled: float = 0.0


class Profile(Record):
    """A cluster's jobs over `seconds` until `time`. `ran` is for how long the longest of them has run.

    `remaining` is how long they will go on as they are; `basis` says how that is known. `flows` is None when they could
    not be counted; `uncounted` says why.
    """

    cluster: str
    jobs: tuple[str, ...]
    time: float
    seconds: float
    ran: float
    remaining: float
    basis: str
    nodes: tuple[NodeLoad, ...]
    ranks: tuple[RankLoad, ...] = ()
    flows: tuple[Flow, ...] | None = ()
    uncounted: str = ""
