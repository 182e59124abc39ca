"""The interface to ranks whose kernel is their host's: a container's. Their host looks at them, here or there.

Invariants: nothing in a node is stopped; only places that `libwherry-mpi.so` made for it are written. A PID is the
host's own, so it is passed to the host that reported it alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from wherry.node.rank_sites import RankSites
from wherry.node.ranks import Times


@dataclass(frozen=True)
class RankProcess:
    """A process that is a rank, and its times."""

    pid: int
    times: Times


@dataclass(frozen=True)
class ReadPage:
    """The page of a rank, as `mpi_page.packed`, and when they were read, by the host's wall clock."""

    data: bytes
    read: float


@dataclass(frozen=True)
class Informed:
    """How many ranks of a node have a map now, and the highest epoch of another map that is in its way."""

    ranks: int
    highest: int


class RankHost(Protocol):
    """One host, as ranks see it."""

    def ranks(self, nodes: tuple[str, ...]) -> tuple[RankProcess, ...]:
        """All processes of these nodes that are ranks."""

    def mpi_page(self, node: str, pid: int, ranks: int) -> ReadPage | None:
        """The page of a process, of a job with so many ranks; None when it has none."""

    def why_uncounted(self, node: str, pid: int) -> str:
        """The reason that is seen in a process why it has no page; empty when it has ended."""

    def newest_map(self, node: str, job: str, ranks: int) -> RankSites:
        """The newest map that ranks of the job have there; of epoch 0 when none has one."""

    def tell_map(self, node: str, job: str, map_: RankSites) -> Informed:
        """Writes a map to the ranks of the job there."""


RankHosts = Callable[[str], RankHost]
"""One host by name. Contacts it only when it is used: LostContact when it does not answer."""
