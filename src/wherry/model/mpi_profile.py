"""Measurements of a running job from inside MPI, by the library that `wherry run` loads into its ranks.

Shares are of time, 0 to 1. Rates are per second of the measured window. A call *waits* for the time beyond the
fastest call of its kind, and *transfers* for the rest.
"""

from __future__ import annotations

from wherry.model.records import Record


class RankActivity(Record):
    """One rank: the shares of its time, and its calls per second. `now`: the call that it is in for `lasts` seconds.

    `period` is the time of an iteration of the program, of `steps` calls; None when it has none that is seen.
    """

    rank: int
    node: str
    computing: float
    waiting: float
    transferring: float
    calls: float
    period: float | None = None
    steps: int = 0
    now: str = ""
    lasts: float = 0.0


class OperationUse(Record):
    """Calls of an operation with at least so many bytes (and less than four times that), per second, of all ranks.

    `share` is their part of the ranks' time, `waiting` that of this in which they waited.
    """

    operation: str
    least: int
    calls: float
    bytes: float
    share: float
    waiting: float


class RankFlow(Record):
    """Messages that a rank sends to another one (point to point), per second."""

    source: int
    target: int
    messages: float
    bytes: float


class CommunicatorUse(Record):
    """Calls on communicators of one size, per second, of all ranks; `share` is their part of the ranks' time."""

    size: int
    calls: float
    bytes: float
    share: float


class MpiProfile(Record):
    """A job in the `seconds` before `time`. `kind` is its bottleneck in a word, with the `reason`.

    `imbalance` is the longest computing of a rank over the mean. `unseen` has the nodes whose ranks could not be
    read, with the reason. `outside` are messages to processes of other worlds.
    """

    job: str
    time: float
    seconds: float
    size: int
    kind: str
    reason: str
    imbalance: float
    ranks: tuple[RankActivity, ...]
    operations: tuple[OperationUse, ...]
    flows: tuple[RankFlow, ...]
    communicators: tuple[CommunicatorUse, ...]
    outside: float = 0.0
    unseen: dict[str, str] = {}
