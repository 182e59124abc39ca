"""The move of a virtual machine between emulated hosts: a live migration (live_migration.py) within cgroups.

The destination's placement and its files are made in advance; the CPU limit of its QEMU is set when the move is over.
Invariant: whether a copy exists is decided by its cgroup, which also finds, and kills, a QEMU unknown to any libvirtd.
"""

from __future__ import annotations

from typing import Any, Protocol

from wherry.base.paths import Instance
from wherry.base.progress import Progress, quiet
from wherry.fabric.cgroup import Cgroup
from wherry.fabric.protocol import Fabric
from wherry.model.migration_parameters import MigrationParameters
from wherry.model.spec.cluster import names_disk
from wherry.node.protocol import Measured, Placement, Usage
from wherry.node.vm import migration_job
from wherry.node.vm.agent_liveness import await_answer
from wherry.node.vm.domain_names import domain_id
from wherry.node.vm.emulated.host_libvirtd import HostDaemon
from wherry.node.vm.live_migration import LiveMigration


class MachineDriver(Protocol):
    """The part of the driver of machines on emulated hosts that a move needs."""

    instance: Instance
    fabric: Fabric

    def daemon(self, host: str) -> HostDaemon:
        """The libvirtd of a host."""

    def prepare_host(self, placement: Placement) -> None:
        """Makes the objects that a machine needs at its host."""

    def confine(self, placement: Placement, bounded: bool = True) -> None:
        """Puts the machine's QEMU into its cgroup, with the node's CPU limit or without."""

    def stop(self, placement: Placement) -> None:
        """Removes a placement."""

    def alive(self, placement: Placement) -> bool:
        """True when a QEMU of the placement exists."""

    def usage(self, placement: Placement) -> Usage:
        """The node's usage."""

    def console_tail(self, placement: Placement) -> str:
        """The end of the node's console."""


class VmMover(LiveMigration):
    """Moves one virtual machine between two placements."""

    def __init__(
        self,
        driver: MachineDriver,
        source: Placement,
        destination: Placement,
        parameters: MigrationParameters | None = None,
    ) -> None:
        super().__init__(domain_id(driver.instance, source.node.name), source, destination, parameters)
        self._driver = driver

    def _open(self, host: str) -> Any:
        return self._driver.daemon(host).connect()

    def _target(self, domain: Any) -> migration_job.MigrationTarget:
        host = self._destination.host
        address, disks = self._driver.fabric.host_address(host), names_disk(self._source.image)
        return migration_job.MigrationTarget(self._driver.daemon(host).peer_uri, address, disks=disks)

    def _begin(self) -> migration_job.MigrationJob:
        if self._job is None and self._parameters.connections:  # which QEMU makes itself
            address = self._driver.fabric.host_address(self._destination.host)
            self._driver.daemon(self._source.host).open_destination(address)
        return super()._begin()

    def predict(self, seconds: float = 0.0) -> Measured:
        return Measured(bytes=self._driver.usage(self._source).memory, overhead=0.3)

    def prepare(self) -> None:
        self._driver.stop(self._destination)
        self._driver.prepare_host(self._destination)
        self._connection(self._destination)
        super().prepare()

    def freeze(self, post_copy: bool = False) -> float | None:
        # only the thread that sends runs from here on; it gets all CPU time that there is
        group = Cgroup(self._source.cgroup)
        group.prefer(True)
        group.limit(None, None)
        return super().freeze(post_copy)

    def restore(self, progress: Progress = quiet) -> float | None:
        self._driver.confine(self._destination, bounded=False)
        return super().restore(progress)

    def switched(self) -> bool:
        if not Cgroup(self._destination.cgroup).exists():
            return False  # not prepared
        return super().switched()

    def release(self) -> None:
        if not self._lost:
            self._driver.confine(self._destination, bounded=False)
        super().release()

    def await_first_run(self) -> float | None:
        return await_answer(self._destination, self._driver.console_tail)

    def roll_back(self) -> None:
        super().roll_back()
        self._driver.confine(self._source)
        self.close()

    def _exists(self, placement: Placement) -> bool:
        return self._driver.alive(placement)

    def _destroy_destination(self) -> None:
        self._driver.stop(self._destination)

    def _destroy_source(self) -> None:
        Cgroup(self._source.cgroup).kill()

    def _clean_up(self) -> None:
        if self._driver.alive(self._destination) and not self._driver.alive(self._source):
            self._driver.stop(self._source)
            self._driver.confine(self._destination)
