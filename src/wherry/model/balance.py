"""What balancing decides: proposed moves with their reasons, and the verdict on each cluster."""

from __future__ import annotations

from enum import StrEnum

from wherry.model.objects import Record


class Kind(StrEnum):
    """What a cluster's jobs spend their time on."""

    NETWORK = "network-bound"
    CPU = "CPU-bound"
    WAITING = "waiting"
    IDLE = "idle"
    UNKNOWN = "unknown"


class ProposedMove(Record):
    """One node to another host, and why; bytes, seconds and downtime as predicted."""

    node: str
    source: str
    destination: str
    reason: str
    bytes: int
    seconds: float
    downtime: float


class Verdict(Record):
    """On one cluster. Without moves it is to stay as it is.

    `before` and `after` are the seconds that its jobs still take, as placed and after the moves; `cost` is the part of
    `after` that the moves take. `step` is the predicted time of a step relative to now, `link` the share of time that
    goes to links between sites, `busiest` the largest computing share of a node. `text` says why, with numbers.
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


class BalancePlan(Record):
    """The verdicts, one for each cluster that was looked at. The score is in seconds: the less, the better."""

    verdicts: tuple[Verdict, ...] = ()

    @property
    def moves(self) -> tuple[ProposedMove, ...]:
        """All moves, in the order of the verdicts."""
        return tuple(move for verdict in self.verdicts for move in verdict.moves)

    @property
    def before(self) -> float:
        """Seconds that all jobs still take together, as placed."""
        return sum(verdict.before for verdict in self.verdicts)

    @property
    def after(self) -> float:
        """The same after the moves, their cost included."""
        return sum(verdict.after for verdict in self.verdicts)
