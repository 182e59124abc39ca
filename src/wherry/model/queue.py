"""Clusters that wait for room."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from wherry.model.owner import Owner
from wherry.model.records import Record
from wherry.model.spec.cluster import ClusterSpec

Priority = Annotated[int, Field(ge=-100, le=100)]
"""Of a cluster that waits: a higher one comes first. Above 0 for root and admins alone."""


class WaitingCluster(Record):
    """A cluster that waits, as it is kept: `operation` makes it, `entered` is when it began to wait."""

    operation: str
    spec: ClusterSpec
    owner: Owner
    priority: Priority
    entered: float


class QueueEntry(Record):
    """A cluster that waits, with its `position` (from 1), `why` it waits, and when there is room for it by the ends of
    leases (`starts`; None: not known)."""

    cluster: str
    operation: str
    by: str
    nodes: int
    priority: int
    entered: float
    position: int
    why: str
    starts: float | None = None
