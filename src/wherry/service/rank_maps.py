"""Gives the ranks of jobs with collectives by sites a new map, after nodes have moved to other sites.

Invariants: the epoch of a job's map only grows, also over daemons, as the map that its ranks have is read first; a node
counts as informed only when no operation moved it meanwhile, as a move may lose the written map; the state of this
object may be lost at any time. The host of a node writes the map there, and none into virtual machines: ranks there
receive it from others. A node whose ranks do not have it, or a job with which something is wrong, is tried again later
and later, and stops no other one.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from wherry.base.errors import LostContact, Refused
from wherry.model.records import Job, Node
from wherry.node.rank_host import Informed
from wherry.node.rank_sites import RankSites, site_numbers, site_runs
from wherry.service.claims import Claims, node_claim
from wherry.service.context import Managers, ServiceContext
from wherry.service.periodic import PeriodicTask

_EVERY, _MAX_PAUSE = 0.5, 60.0
"""Seconds between two looks, and the backoff of a failed step, doubled up to the second figure."""


@dataclass
class _Wait:
    """Of a failed step: the next pause, and until when (time.monotonic) it is left alone."""

    pause: float = _EVERY
    until: float = 0.0

    @property
    def over(self) -> bool:
        return time.monotonic() >= self.until

    def again(self) -> None:
        self.until = time.monotonic() + self.pause
        self.pause = min(2 * self.pause, _MAX_PAUSE)


@dataclass
class _Told:
    """The map of a job as runs, its epoch, the nodes whose ranks all have it, and when others get it again."""

    runs: str
    epoch: int
    nodes: set[str] = field(default_factory=set)
    waits: defaultdict[str, _Wait] = field(default_factory=lambda: defaultdict(_Wait))


class RankMaps(PeriodicTask):
    """Does nothing while no job runs that goes by sites."""

    def __init__(self, context: ServiceContext, every: float = _EVERY) -> None:
        super().__init__("rank-maps", every)
        self._context = context
        self._told: dict[str, _Told] = {}
        self._failed: dict[str, _Wait] = {}

    def run_once(self) -> None:
        managers = self._context.managers
        if managers is None:
            return
        jobs = [job for job in self._context.store.jobs_under_way() if job.computes and job.site_map]
        self._told = {job.id: self._told[job.id] for job in jobs if job.id in self._told}
        self._failed = {job.id: self._failed[job.id] for job in jobs if job.id in self._failed}
        for job in jobs:
            if job.id in self._failed and not self._failed[job.id].over:
                continue
            try:
                self._tell(managers, job)
                self._failed.pop(job.id, None)
            except (LostContact, Refused) as error:  # the map that its ranks have is not known yet
                self._log.info("job %s: %s", job.id, error)
                self._failed.setdefault(job.id, _Wait()).again()
            except Exception:  # the other jobs' ranks must receive their maps
                self._log.exception("the ranks of job %s do not learn of moves", job.id)
                self._failed.setdefault(job.id, _Wait()).again()

    def _tell(self, managers: Managers, job: Job) -> None:
        nodes = {node.name: node for node in self._context.store.nodes(job.cluster)}
        sites = {host.name: host.site for host in managers.fabric.spec.hosts}
        if not all(name in nodes and nodes[name].host in sites for name in job.rank_nodes):
            return
        runs = site_runs([sites[nodes[name].host] for name in job.rank_nodes])
        told = self._told.get(job.id) or self._told.setdefault(job.id, self._first(managers, job, nodes))
        if told.runs != runs:
            told = self._told[job.id] = _Told(runs, told.epoch + 1)
        if told.epoch:
            for name, count in Counter(job.rank_nodes).items():
                if name not in told.nodes and told.waits[name].over:
                    self._tell_node(managers, job, nodes[name], count, told)

    def _tell_node(self, managers: Managers, job: Job, node: Node, count: int, told: _Told) -> None:
        map_ = RankSites(told.epoch, site_numbers(told.runs))

        def write() -> Informed:
            try:
                return managers.ranks(node.host).tell_map(node.name, job.id, map_)
            except (LostContact, Refused) as error:  # it gets the map when its host answers
                self._log.info("%s: %s", node.name, error)
                return Informed(0, 0)

        def note(done: Informed) -> None:
            if done.ranks >= count:
                told.nodes.add(node.name)
                return
            told.waits[node.name].again()
            if done.highest >= told.epoch:  # a daemon before this one gave them another map
                told.epoch, told.nodes = done.highest + 1, set()

        if not managers.placements.port(node).tap:
            self._context.operations.if_unclaimed(Claims.of(exclusive=[node_claim(node.name)]), write, note)

    def _first(self, managers: Managers, job: Job, nodes: dict[str, Node]) -> _Told:
        """The map that the ranks have, when this daemon sees the job first."""
        newest = RankSites(0, ())
        for name in dict.fromkeys(job.rank_nodes):
            if not managers.placements.port(nodes[name]).tap:
                found = managers.ranks(nodes[name].host).newest_map(name, job.id, job.ranks)
                newest = max(newest, found, key=lambda map_: map_.epoch)
        return _Told(site_runs(newest.sites) if newest.epoch else job.site_map, newest.epoch)
