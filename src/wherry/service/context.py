"""Everything of one instance: its store, its operations, and the managers of what stands on its fabric.

Invariant: the row of the fabric is written before the fabric is made and forgotten after it is gone; there is one set
of managers per fabric, and none when no fabric is up. `_lock` is held to make, change or remove the fabric; readers
take the reference once, so a fabric that goes down meanwhile is an error of what they do with it, not a race.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wherry.base.errors import Code, Refused
from wherry.base.paths import Instance
from wherry.cluster.clusters import Clusters
from wherry.cluster.lookup import LOST, known_hosts
from wherry.cluster.placements import Placements
from wherry.fabric.default_fabric import default_fabric
from wherry.fabric.protocol import Fabric
from wherry.job.jobs import Jobs
from wherry.manycore.board import Board, tiles_socket
from wherry.model.objects import ClusterState, Host, Operation, Phase
from wherry.model.spec.fabric import FabricSpec, LinkSpec
from wherry.move.moves import Moves
from wherry.node.protocol import NodeDriver
from wherry.service import wiring
from wherry.service.operations import Operations
from wherry.service.wakeups import Wakeups
from wherry.store import Store

log = logging.getLogger("wherry.cell")
TILES_AT = "tiles at"
"""Setting: a JSON list of the hosts on which tiles were started last; empty for tiles beside the fabric."""
TILES_BALANCED = "tiles balanced"
"""Setting: not empty when the tiles that were started last are to be balanced."""


@dataclass
class Managers:
    """Clusters, jobs and moves on one fabric."""

    fabric: Fabric
    drivers: dict[str, NodeDriver]
    places: Placements
    clusters: Clusters
    jobs: Jobs
    moves: Moves


class ServiceContext:
    """One instance. `close` leaves everything running."""

    def __init__(self, instance: Instance, store: Store) -> None:
        self.instance = instance
        self.store = store
        self.wakeups = Wakeups()
        self.operations = Operations(store, self.wakeups.wake)
        store.on_event = self.wakeups.wake
        self.board = Board(tiles_socket(instance))
        self._lock = threading.RLock()
        self._managers: Managers | None = None
        spec = store.fabric()
        if spec:
            self._managers = self.make_managers(wiring.make_fabric(spec, instance))

    def make_managers(self, fabric: Fabric) -> Managers:
        """Managers of what stands on a fabric."""
        drivers = wiring.make_drivers(fabric, self.instance)
        for host in fabric.spec.hosts:
            if self.store.host_flag(host.name, LOST):
                fabric.set_lost(host.name, True)
        places = Placements(self.store, fabric)
        return Managers(
            fabric=fabric,
            drivers=drivers,
            places=places,
            clusters=Clusters(self.store, fabric, drivers),
            jobs=Jobs(self.store, fabric, places, self.instance),
            moves=Moves(self.store, fabric, drivers, places),
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

    def ensure_managers(self) -> Managers:
        """The managers; the embedded fabric is made when there is none, and what a reboot took away is made again."""
        with self._lock:
            if self._managers is None:
                self.fabric_up(default_fabric())
            managers = self.require_managers()
            if not managers.fabric.is_up():
                managers.fabric.up()
            return managers

    def planning_managers(self) -> Managers:
        """Managers to plan with: of the fabric that is up, or of the embedded fabric in memory. Changes nothing."""
        return self._managers or self.make_managers(wiring.in_memory_fabric(default_fabric()))

    def check_fabric_up(self, spec: FabricSpec) -> None:
        """Refuses what `fabric_up` would refuse."""
        wiring.check_fabric(spec)
        managers = self._managers
        if managers is not None and not managers.fabric.spec.differs_in_figures_only(spec):
            self._refuse_in_use(f"fabric {managers.fabric.spec.name} cannot be replaced")

    def check_fabric_down(self) -> None:
        """Refuses what `fabric_down` would refuse, and when there is no fabric."""
        self._refuse_in_use(f"fabric {self.require_managers().fabric.spec.name} cannot be taken down")

    def fabric_up(self, spec: FabricSpec) -> None:
        """Makes the fabric; the same one again repairs it. WRONG_STATE when clusters or tiles are on another one."""
        with self._lock:
            self.check_fabric_up(spec)
            if self._managers is not None and not self._managers.fabric.spec.differs_in_figures_only(spec):
                self.fabric_down()
            managers = self._managers or self.make_managers(wiring.make_fabric(spec, self.instance))
            before = managers.fabric.spec
            self.store.put_fabric(spec)
            managers.fabric.spec = spec
            self._managers = managers
            try:
                managers.fabric.up()
            except Exception:
                if self.store.clusters() or self.tiles_at():
                    self._links_as(before)
                else:
                    self.fabric_down()
                raise
            self.store.add_event("fabric.up", spec.name, f"fabric {spec.name} is up with {len(spec.hosts)} hosts")

    def _links_as(self, spec: FabricSpec) -> None:
        """Goes back to these figures, row and wires."""
        fabric = self.require_managers().fabric
        self.store.put_fabric(spec)
        fabric.spec = spec
        try:
            fabric.relink()
        except Exception:  # why the other figures could not be had is what counts
            log.exception("links could not be made as they were")

    def fabric_down(self) -> None:
        """Removes the fabric. WRONG_STATE while clusters or tiles are on it; nothing to do when there is none."""
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
        """Refuses what `set_link` would refuse."""
        wiring.check_fabric(self.require_managers().fabric.spec.with_link(link))

    def set_link(self, link: LinkSpec) -> None:
        """Makes the link between these two sites into this one, while everything runs."""
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
        """The hosts as they are now; none when no fabric is up."""
        managers = self._managers
        return known_hosts(self.store, managers.fabric) if managers and managers.fabric.is_up() else []

    def job_directory(self, id: str) -> Path | None:
        """Where the files of a job are that its holder writes; None when no fabric is up."""
        managers = self._managers
        return managers.jobs.directory(id) if managers else None

    def recover(self) -> None:
        """Takes over what an earlier daemon left: jobs adopted, moves finished or rolled back, its operations ended."""
        with self._lock:
            managers = self._managers
            if managers is not None:
                if managers.fabric.is_up():
                    self._attempt("the links", managers.fabric.relink)
                else:
                    self._attempt("the fabric", managers.fabric.up)
                self._attempt("moves", lambda: managers.moves.recover(log.info))
                self._attempt("jobs", managers.jobs.adopt)
            for cluster in self.store.clusters():
                if cluster.state == ClusterState.MAKING:
                    change = {"state": ClusterState.PARTLY, "reason": "the daemon was stopped while it was made"}
                    self.store.put_cluster(cluster.model_copy(update=change))
            self.operations.end_left_over(self._finished)

    def _attempt(self, what: str, act: Callable[[], None]) -> None:
        """A daemon that cannot take over something serves the rest, and says so."""
        try:
            act()
        except Exception as error:
            log.exception("recovery of %s", what)
            self.store.add_event("daemon.recovery", self.instance.name, f"{what} could not be taken over: {error}")

    def _finished(self, operation: Operation) -> dict[str, Any] | None:
        """The result of an operation that was cut short, when recovery has completed what it did: a committed move."""
        if operation.kind != "move":
            return None
        for move in reversed(self.store.moves()):
            if f"{move.node} to {move.destination}" == operation.target and move.created >= operation.created:
                return {"move": move.model_dump(mode="json")} if move.phase == Phase.DONE else None
        return None

    def close(self, timeout: float = 20.0) -> None:
        """Ends operations (see `Operations.close`) and the store. Nodes and jobs run on."""
        self.operations.close(timeout)
        self.store.close()

    def tiles_at(self) -> list[str]:
        """The hosts in whose network namespaces tiles run; none when they run beside the fabric, or there are none.

        The names are stored before the tiles start; whether these still run is what their name server says.
        """
        hosts = json.loads(self.store.setting(TILES_AT) or "[]")
        return list(hosts) if hosts and self.board.is_up() else []

    def refuse_tiles(self, what: str, hosts: Collection[str]) -> None:
        """WRONG_STATE while tiles run on one of these hosts."""
        if there := [host for host in self.tiles_at() if host in hosts]:
            why = f"tiles run in the network of {', '.join(there)} and cannot leave it"
            raise Refused(Code.WRONG_STATE, what, why, "wherry tile down")

    def _refuse_in_use(self, what: str) -> None:
        names = [cluster.name for cluster in self.store.clusters()]
        if names:
            why = f"clusters stand on it: {', '.join(names)}"
            raise Refused(Code.WRONG_STATE, what, why, f"wherry down {names[0]}")
        self.refuse_tiles(what, [host.name for host in self.require_managers().fabric.spec.hosts])
