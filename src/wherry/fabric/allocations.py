"""The interface of fabrics whose hosts come and go with allocations of a batch system.

Invariant: a host that is not present is contacted only to remove its objects of this instance.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from wherry.model.allocations import Allocation
from wherry.model.network import ClusterNetwork


class Allocations(Protocol):
    """The further abilities of a fabric on a batch system."""

    asks: bool
    """Whether this instance asks for allocations; otherwise it has an allocation that somebody else asked for."""
    leave: float
    """Seconds before the end of an allocation at which hosts are left."""
    early: float
    """Seconds before the end of an allocation at which the next one is asked for."""

    def restore(self, hosts: Collection[str]) -> None:
        """The hosts that are present, as an earlier daemon left them. Contacts none."""

    def look(self) -> list[Allocation]:
        """The allocations that wait or run. Failed when the batch system does not answer: then nothing is known."""

    def troubles(self) -> dict[str, str]:
        """Its reports about hosts that failed or are to be left. Failed."""

    def ask(self) -> int:
        """Asks for another allocation. Returns its number. Failed."""

    def release(self, id: int) -> None:
        """Gives an allocation back that this instance asked for. Failed."""

    def prepare(self, hosts: Collection[str]) -> None:
        """Reaches hosts that are about to join, all at the same time: at the first time much is copied there."""

    def admit(self, host: str) -> None:
        """Has a host join. Its objects of this instance are removed first. LostContact when it does not answer."""

    def dismiss(self, host: str, empty: bool) -> None:
        """Has a host leave, and removes its objects of this instance: now, or, when it is `empty`, as soon as it
        answers. LostContact when it is not, and does not answer: it stays, as its nodes may run."""

    def connect(self, networks: Callable[[], Sequence[ClusterNetwork]]) -> None:
        """Joins the hosts that are present by the networks of clusters, and no others. `networks` is called when new
        ones are made for these hosts."""
