"""Decisions of balancing: proposed moves with their reasons, and a verdict on each cluster."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from wherry.model.records import Record

MAX_MEASUREMENT = 30.0
"""Longest measurement, in seconds."""
Measured = Annotated[float, Field(gt=0, le=MAX_MEASUREMENT)]
Remaining = Annotated[float, Field(gt=0)]
"""Expected run time of a job, or the rest of it, in seconds."""


class Kind(StrEnum):
    """The limit of the speed of a cluster's jobs."""

    NETWORK = "network-bound"
    CPU = "CPU-bound"
    WAITING = "waiting"
    IDLE = "idle"
    UNKNOWN = "unknown"


class ProposedMove(Record):
    """The move of one node, its reason, and its predicted bytes, seconds and downtime. With a `swap` it changes places
    with that node, whose own move is in the same verdict."""

    node: str
    source: str
    destination: str
    reason: str
    bytes: int
    seconds: float
    downtime: float
    swap: str = ""


class Verdict(Record):
    """The decision on one cluster; without moves its placement is kept.

    `before` and `after` are the remaining seconds of its jobs as placed and after the moves; `cost` is the part of
    `after` that the moves take. `step` is the predicted time of a step relative to now, `link` the share of time that
    links between sites take, `busiest` the largest computing share of a node. `text` gives the reasons, with numbers.
    `rate` is how many messages its `jobs` exchanged in a second, None where they were not counted. `source`, `period`
    and `steps` are those of its profile.
    """

    cluster: str
    kind: Kind
    text: str
    before: float = 0.0
    after: float = 0.0
    cost: float = 0.0
    step: float = 1.0
    link: float = 0.0
    busiest: float = 0.0
    moves: tuple[ProposedMove, ...] = ()
    jobs: tuple[str, ...] = ()
    rate: float | None = None
    source: str = ""
    period: float | None = None
    steps: int = 0


class BalancePlan(Record):
    """The verdicts, one for each cluster that was sampled. Times are in seconds: less is better."""

    verdicts: tuple[Verdict, ...] = ()

    @property
    def moves(self) -> tuple[ProposedMove, ...]:
        """All moves, in the order of the verdicts."""
        return tuple(move for verdict in self.verdicts for move in verdict.moves)

    @property
    def before(self) -> float:
        """Sum of the remaining seconds of all jobs, as placed."""
        return sum(verdict.before for verdict in self.verdicts)

    @property
    def after(self) -> float:
        """The same after the moves, with their cost."""
        return sum(verdict.after for verdict in self.verdicts)
