"""Measurements of running jobs for balancing: computing, waiting, and traffic between nodes.

Shares are of time, 0 to 1. Rates are per second of the measured window.
"""

from __future__ import annotations

from wherry.model.records import Record

OUTSIDE, INSIDE = "from outside", "inside MPI"
"""Sources of a profile: counters of the kernel and of the hosts; or the ranks' counts of their own calls of MPI."""


class Flow(Record):
    """Traffic from one node to another, per second: TCP frames with data as they leave it, their bytes, and turns.

    A turn is a frame that answers: the target has sent to the source since the frame before. A one-way stream has many
    frames and one turn; only for a turn can the target have waited a whole latency. Between nearby nodes turns are not
    counted, and every frame is taken for one.
    """

    source: str
    target: str
    messages: float
    bytes: float
    turns: float


class RankLoad(Record):
    """One rank: the CPUs that it used, and the shares of its time in which it computed and waited for others or for
    messages; `transferring` is the part of the waiting that the fastest call of its kind takes, None from outside."""

    rank: int
    node: str
    cpu: float
    computing: float
    waiting: float
    transferring: float | None = None


class NodeLoad(Record):
    """One node: the sums over its ranks, and the share of time in which its CPU limit throttled it."""

    node: str
    host: str
    ranks: int
    cpu: float
    computing: float
    waiting: float
    throttled: float = 0.0


class Profile(Record):
    """A cluster's jobs in the `seconds` before `time`. `ran` is the run time of the oldest.

    `remaining` is their expected remaining time without moves, `basis` the source of that estimate. `flows` is None
    when traffic could not be counted, for the reason in `uncounted`. `source` is "inside MPI" when each rank of each
    job counts its calls, else "from outside". From inside an iteration of the program is seen, if it has any: it
    takes `period` seconds and has `steps` calls.
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
    source: str = OUTSIDE
    period: float | None = None
    steps: int = 0

    @property
    def messages(self) -> float | None:
        """Messages per second between the nodes; None when they were not counted."""
        return None if self.flows is None else sum(flow.messages for flow in self.flows)
