"""The ranks at this machine, or at an emulated host of it."""

from __future__ import annotations

from collections.abc import Iterator

from wherry.fabric.cgroup import Cgroup
from wherry.node import mpi_page, rank_sites, ranks
from wherry.node.rank_host import Informed, RankProcess, ReadPage
from wherry.node.rank_sites import RankSites


class LocalRanks:
    """The `RankHost` whose nodes are in cgroups below `cgroup`."""

    def __init__(self, cgroup: str) -> None:
        self._cgroup = cgroup

    def ranks(self, nodes: tuple[str, ...]) -> tuple[RankProcess, ...]:
        return tuple(RankProcess(*found) for node in nodes for found in ranks.here(node, self._pids(node)))

    def mpi_page(self, node: str, pid: int, ranks: int) -> ReadPage | None:
        found = mpi_page.read(pid, ranks) if pid in self._pids(node) else None
        return ReadPage(mpi_page.packed(found), found.read) if found else None

    def why_uncounted(self, node: str, pid: int) -> str:
        return mpi_page.why_none(pid) if pid in self._pids(node) else ""

    def newest_map(self, node: str, job: str, ranks: int) -> RankSites:
        found = (rank_sites.heard(pid, ranks) for pid in self._of(node, job))
        return max(filter(None, found), key=lambda one: one.epoch, default=RankSites(0, ()))

    def tell_map(self, node: str, job: str, map_: RankSites) -> Informed:
        return Informed(*rank_sites.tell(self._of(node, job), map_))

    def _of(self, node: str, job: str) -> Iterator[int]:
        return (pid for pid, times in ranks.here(node, self._pids(node)) if times.job == job)

    def _pids(self, node: str) -> list[int]:
        return Cgroup(f"{self._cgroup}/{node}").pids()
