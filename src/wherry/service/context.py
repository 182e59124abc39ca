"""The objects of one instance: its store, its operations, and the managers of clusters, jobs and moves on its fabric.

Invariant: the row of the fabric is written before the fabric is made and deleted after it is removed. There is one set
of managers per fabric, and none when no fabric is up. `_lock` is held while the fabric is made, changed or removed.
Readers take the reference to the managers once: if the fabric goes down meanwhile, their calls fail, but never midway
on None.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wherry.base.errors import Code, Refused
from wherry.base.paths import Instance
from wherry.cluster.clusters import Clusters
from wherry.cluster.lookup import ALLOCATED, LOST, known_hosts
from wherry.cluster.placements import Placements
from wherry.fabric.allocations import Allocations
from wherry.fabric.default_fabric import default_fabric
from wherry.fabric.protocol import Fabric
from wherry.job.file_visibility import drop_unused
from wherry.job.jobs import Jobs
from wherry.model.balance import Verdict
from wherry.model.records import ClusterState, Host, Job, JobState, Node, NodeState, Operation, Phase
from wherry.model.spec.fabric import FabricSpec, LinkSpec
from wherry.move.moves import Moves
from wherry.node.protocol import NodeDriver
from wherry.node.rank_host import RankHosts
from wherry.service import wiring
from wherry.service.component import ServicePart, service_parts
from wherry.service.metrics import Metrics
from wherry.service.move_ends import MoveEndTimes
from wherry.service.operations import Operations
from wherry.service.wakeups import Wakeups
from wherry.store import Store

if TYPE_CHECKING:
    from wherry.service.network_listener import NetworkListener

log = logging.getLogger("wherry.context")
Carried = tuple[Verdict, tuple[str, ...]]
"""A verdict, and the ids of its moves."""


@dataclass
class Managers:
    """The managers of clusters, jobs and moves on one fabric, with its drivers."""

    fabric: Fabric
    drivers: dict[str, NodeDriver]
    placements: Placements
    clusters: Clusters
    jobs: Jobs
    moves: Moves
    ranks: RankHosts
    allocations: Allocations | None = None


class ServiceContext:
    """One instance. Nodes and jobs survive `close`."""

    def __init__(self, instance: Instance, store: Store) -> None:
        self.instance = instance
        self.store = store
        self.wakeups = Wakeups()
        self.move_ends = MoveEndTimes()
        self.carried_out = queue.SimpleQueue[Carried]()
        """Plans of balancing whose moves are done, and whose gain is to be measured."""
        self.operations = Operations(store, self.wakeups.wake)
        self.metrics = Metrics(store)
        store.on_event = self.wakeups.wake
        self.open_inside: Callable[[str], None] = lambda _cluster: None
        """Has the nodes of a cluster reach the daemon, before a job of it starts."""
        self.close_inside: Callable[[str], None] = lambda _cluster: None
        """The reverse, before its network is removed."""
        self.network: NetworkListener | None = None
        """The listener for the network, which the daemon has."""
        self._lock = threading.RLock()
        self._managers: Managers | None = None
        spec = store.fabric()
        if spec:
            self._managers = self.make_managers(wiring.make_fabric(spec, instance))

    def make_managers(self, fabric: Fabric) -> Managers:
        """New managers for a fabric."""
        drivers = wiring.make_drivers(fabric, self.instance)
        allocations = wiring.allocations_of(fabric)
        if allocations:
            present = [host.name for host in fabric.spec.hosts if self.store.host_flag(host.name, ALLOCATED)]
            allocations.restore(present)
        for host in fabric.spec.hosts:
            if self.store.host_flag(host.name, LOST):
                fabric.set_lost(host.name, True)
        placements = Placements(self.store, fabric)
        return Managers(
            fabric=fabric,
            drivers=drivers,
            placements=placements,
            clusters=Clusters(self.store, fabric, drivers, wiring.make_servers(fabric, self.instance)),
            jobs=Jobs(self.store, fabric, placements, self.instance, drivers, wiring.library_path(fabric)),
            moves=Moves(self.store, fabric, drivers, placements),
            ranks=wiring.rank_hosts(fabric),
            allocations=allocations,
        )

    @property
    def managers(self) -> Managers | None:
        """The managers; None when no fabric is up."""
        return self._managers

    def require_managers(self) -> Managers:
        """The managers. WRONG_STATE when no fabric is up."""
        managers = self._managers
        if managers is None:
            remedy = "wherry fabric up FILE, or: wherry up FILE"
            raise Refused(Code.WRONG_STATE, "no fabric is up", "there are no hosts", remedy)
        return managers

    def fabric_is_up(self) -> bool:
        """False when there is no fabric, or a reboot removed it from the machine."""
        managers = self._managers
        return managers is not None and managers.fabric.is_up()

    def ensure_managers(self) -> Managers:
        """The managers. Makes the embedded fabric if there is none, and repairs a fabric that a reboot removed: the
        caller claims the fabric exclusively unless it is up."""
        with self._lock:
            if self._managers is None:
                self.fabric_up(default_fabric())
            managers = self.require_managers()
            if not managers.fabric.is_up():
                managers.fabric.up()
            return managers

    def planning_managers(self) -> Managers:
        """The managers; those of the same fabric in memory while it is not up, and of the embedded one if there is
        none. Changes nothing."""
        managers = self._managers
        if managers is not None and managers.fabric.is_up():
            return managers
        spec = default_fabric() if managers is None else managers.fabric.spec
        return self.make_managers(wiring.in_memory_fabric(spec))

    @contextlib.contextmanager
    def keeping_fabric(self, managers: Managers) -> Iterator[bool]:
        """Keeps the fabric from being made, changed or removed meanwhile. False when it is another one by now."""
        with self._lock:
            yield self._managers is managers

    def expanded(self, spec: FabricSpec) -> FabricSpec:
        """The fabric with the hosts that a batch system has for it. Refused, Failed."""
        managers = self._managers
        return wiring.expanded(spec, self.instance, managers.fabric.spec if managers else None)

    def check_fabric_up(self, spec: FabricSpec) -> None:
        """Refuses each spec that `fabric_up` would refuse."""
        wiring.check_fabric(spec)
        managers = self._managers
        if managers is not None and not managers.fabric.spec.differs_in_figures_only(spec):
            self._refuse_in_use(f"fabric {managers.fabric.spec.name} cannot be replaced")

    def check_fabric_down(self) -> None:
        """Refuses when `fabric_down` would refuse. WRONG_STATE too when no fabric is up."""
        self._refuse_in_use(f"fabric {self.require_managers().fabric.spec.name} cannot be taken down")

    def fabric_up(self, spec: FabricSpec) -> None:
        """Makes the fabric, or repairs it. WRONG_STATE when a different one is in use."""
        with self._lock:
            self.check_fabric_up(spec)
            if self._managers is not None and not self._managers.fabric.spec.differs_in_figures_only(spec):
                self.fabric_down()
            managers = self._managers or self.make_managers(wiring.make_fabric(spec, self.instance))
            before = managers.fabric.spec
            self.store.put_fabric(spec)
            managers.fabric.spec = spec
            try:
                managers.fabric.up()
            except Exception:
                self._managers = managers
                if self.store.clusters() or any(hosts for _, hosts in self._hosts_in_use()):
                    self._restore_links(before)
                else:
                    self._remove_half_made()
                raise
            self._managers = managers  # only now: nobody is to use a fabric that is half made
            self.store.add_event("fabric.up", spec.name, f"fabric {spec.name} is up with {len(spec.hosts)} hosts")

    def _remove_half_made(self) -> None:
        try:
            self.fabric_down()
        except Exception:  # the caller raises the first error; the row stays, for another `fabric down`
            log.exception("the fabric failed to start, and its remains could not be removed")

    def _restore_links(self, spec: FabricSpec) -> None:
        """Restores the links of an earlier spec, in the row and on the machine."""
        fabric = self.require_managers().fabric
        self.store.put_fabric(spec)
        fabric.spec = spec
        try:
            fabric.relink()
        except Exception:  # the caller raises the first error
            log.exception("the links could not be restored")

    def fabric_down(self) -> None:
        """Removes the fabric, if there is one. WRONG_STATE while it is in use."""
        with self._lock:
            if self._managers is None:
                return
            spec = self._managers.fabric.spec
            self._refuse_in_use(f"fabric {spec.name} cannot be taken down")
            self._managers.fabric.down()
            for host in spec.hosts:
                for flag in self.store.host_flags(host.name):
                    self.store.set_host_flag(host.name, flag, False)
            self.store.put_fabric(None)
            self._managers = None
            self.store.add_event("fabric.down", spec.name, f"fabric {spec.name} is down")

    def link(self, one: str, other: str) -> LinkSpec:
        """The link between two sites. NOT_FOUND."""
        return self.require_managers().fabric.spec.link(one, other)

    def check_link(self, link: LinkSpec) -> None:
        """Refuses each link that `set_link` would refuse."""
        wiring.check_fabric(self.require_managers().fabric.spec.with_link(link))

    def set_link(self, link: LinkSpec) -> None:
        """Replaces the link between two sites while nodes and jobs run."""
        with self._lock:
            fabric, before = self.require_managers().fabric, self.require_managers().fabric.spec
            self.store.put_fabric(before.with_link(link))
            try:
                fabric.set_link(link)
            except Exception:
                self.store.put_fabric(before)
                raise
            self.store.add_event("link.set", link.name, f"the link is now: {link.described()}")

    def hosts(self) -> list[Host]:
        """The hosts and their present state; none when no fabric is up."""
        managers = self._managers
        return known_hosts(self.store, managers.fabric) if managers and managers.fabric.is_up() else []

    def job_directory(self, id: str) -> Path | None:
        """The directory of the files that a job's holder writes; None when no fabric is up."""
        managers = self._managers
        return managers.jobs.directory(id) if managers else None

    def jobs_with_lost_nodes(self) -> list[tuple[Job, Node]]:
        """The running jobs, each with every lost node of its cluster; it may have ranks there.

        Jobs are read before nodes: a job that began on a node after its repair is not among them.
        """
        jobs = [job for job in self.store.jobs_under_way() if job.state == JobState.RUNNING]
        lost = [node for node in self.store.nodes() if node.state == NodeState.LOST] if jobs else []
        return [(job, node) for job in jobs for node in lost if node.cluster == job.cluster]

    def end_job_on_lost_node(self, managers: Managers, job: Job, node: Node) -> None:
        """Ends the job if it has ranks on the lost node. May be repeated."""
        if managers.jobs.node_lost(job.id, node):
            self.store.add_event("job.node-lost", job.id, f"its node {node.name} is lost")

    def recover(self, resume: Callable[[ServiceContext], object] = lambda _: None) -> None:
        """Takes over from an earlier daemon: links, moves to finish or roll back, jobs to adopt, operations to end,
        programs of earlier builds to remove. `resume` has operations wait on that waited."""
        with self._lock:
            managers = self._managers
            if managers is not None:
                if managers.fabric.is_up():
                    self._attempt("the links", managers.fabric.relink)
                else:
                    self._attempt("the fabric", managers.fabric.up)
                self._attempt("moves", lambda: managers.moves.recover(log.info))
                for cluster in self.store.clusters():
                    self._attempt(f"binds of {cluster.name}", partial(managers.clusters.binds.end, cluster.name))
                self._attempt("jobs", managers.jobs.adopt)
            self._attempt("clusters", self._end_making)
            self._attempt("programs of earlier builds", lambda: drop_unused(self.instance.state / "bin"))
            self._attempt("clusters that wait", lambda: resume(self))
            self._attempt("operations", lambda: self.operations.end_left_over(self._finished))

    def _end_making(self) -> None:
        for cluster in self.store.clusters():
            if cluster.state == ClusterState.MAKING:
                change = {"state": ClusterState.PARTLY, "reason": "the daemon was stopped while it was made"}
                self.store.put_cluster(cluster.model_copy(update=change))

    def _attempt(self, what: str, act: Callable[[], object]) -> None:
        """Runs one step of the recovery. An error becomes an event, and the daemon serves the rest."""
        try:
            act()
        except Exception as error:
            log.exception("recovery of %s", what)
            text = f"{what} could not be recovered: {error}"
            with contextlib.suppress(Exception):  # the disk is full, perhaps: the log has it
                self.store.add_event("daemon.recovery", self.instance.name, text)

    def _finished(self, operation: Operation) -> dict[str, Any] | None:
        """The result of an interrupted operation that was completed all the same, else None: a committed move, which
        the recovery has finished, or the start of a job, which would run twice if its user repeated the command."""
        for move in self.store.moves() if operation.kind == "move" else ():
            if move.operation == operation.id and move.phase == Phase.DONE:
                return {"move": move.model_dump(mode="json")}
        for job in self.store.jobs() if operation.kind in ("run", "exec") else ():
            if job.operation == operation.id and job.state != JobState.STARTING:
                return {"job": job.model_dump(mode="json")}
        return None

    def close(self, timeout: float = 20.0) -> None:
        """Ends operations (see `Operations.close`) and closes the store. Nodes and jobs run on."""
        self.operations.close(timeout)
        self.store.close()

    def _hosts_in_use(self) -> Iterator[tuple[ServicePart, list[str]]]:
        """The components, each with the hosts that it uses."""
        return ((part, part.hosts_in_use(self.instance, self.store)) for _, part in service_parts())

    def refuse_use_by_components(self, what: str, hosts: Collection[str]) -> None:
        """WRONG_STATE while a component uses one of these hosts."""
        for part, found in self._hosts_in_use():
            if used := [host for host in found if host in hosts]:
                raise Refused(Code.WRONG_STATE, what, *part.use_of(used))

    def _refuse_in_use(self, what: str) -> None:
        names = [cluster.name for cluster in self.store.clusters()]
        if names:
            why = f"clusters use it: {', '.join(names)}"
            raise Refused(Code.WRONG_STATE, what, why, f"wherry down {names[0]}")
        self.refuse_use_by_components(what, [host.name for host in self.require_managers().fabric.spec.hosts])
