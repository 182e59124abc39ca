"""Measurements of the last runs of programs.

Invariant: a profile describes ranks, not nodes, so it holds for the next run on any cluster.
"""

from __future__ import annotations

from wherry.model.balance import Kind
from wherry.model.records import ProgramKey, Record


class RankProfile(Record):
    """One rank: its `group`, the CPUs that it used, the shares of its time in which it computed and waited, and its
    `work`, which is the computing share on an unshared core of the fastest host. Ranks of a group ran on one node."""

    rank: int
    group: int
    cpu: float
    computing: float
    waiting: float
    work: float


class GroupFlow(Record):
    """Messages, bytes and turns per second from the ranks of one group to those of another (see `Flow`)."""

    source: int
    target: int
    messages: float
    bytes: float
    turns: float


class ProgramProfile(Record):
    """Measurements of a program's last run, in `seconds` of it that began when it had run for `ran`.

    `kind` and `reason` are its classification, `imbalance` is the largest computing share of a rank by the mean one.
    `flows` are those with most turns, None when messages could not be counted. `runs` is the number of runs that were
    measured, `job` the last.
    """

    key: str
    program: ProgramKey
    kind: Kind
    reason: str
    time: float
    ran: float
    seconds: float
    runs: int
    job: str
    imbalance: float
    ranks: tuple[RankProfile, ...]
    flows: tuple[GroupFlow, ...] | None = ()
