"""The move of a virtual machine between emulated hosts: what libvirt does (live.py), in the cgroups of both places.

The destination's place is made before, with what the node is given; its QEMU gets its share of the CPU when the move
is over. Invariant: whether a copy is there is asked of cgroups, which also tell, and end, what no libvirtd knows of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wherry.base.progress import Progress, quiet
from wherry.fabric.cgroup import Cgroup
from wherry.model.migration_parameters import MigrationParameters
from wherry.model.spec.cluster import names_disk
from wherry.node.protocol import Placement
from wherry.node.vm import migration_job
from wherry.node.vm.agent_probe import await_answer
from wherry.node.vm.identifiers import domain_id
from wherry.node.vm.live_migration import LiveMigration

if TYPE_CHECKING:
    from wherry.node.vm.emulated.driver import VmDriver


class VmMover(LiveMigration):
    """Moves one virtual machine between two places."""

    def __init__(
        self, driver: VmDriver, source: Placement, destination: Placement, parameters: MigrationParameters | None = None
    ) -> None:
        super().__init__(domain_id(driver.instance, source.node.name), source, destination, parameters)
        self._driver = driver

    def _open(self, host: str) -> Any:
        return self._driver.daemon(host).connect()

    def _peer(self, domain: Any) -> migration_job.MigrationTarget:
        host = self._destination.host
        address, disks = self._driver.fabric.host_address(host), names_disk(self._source.image)
        return migration_job.MigrationTarget(self._driver.daemon(host).peer_uri, address, disks=disks)

    def predict(self) -> tuple[int, float]:
        return self._driver.usage(self._source).memory, 0.3

    def prepare(self) -> None:
        self._driver.stop(self._destination)
        self._driver.ready(self._destination)
        self._connection(self._destination)
        super().prepare()

    def freeze(self, post_copy: bool = False) -> float | None:
        # only what sends the rest runs from here on, and everybody waits for it
        group = Cgroup(self._source.cgroup)
        group.prefer(True)
        group.limit(None, None)
        return super().freeze(post_copy)

    def restore(self, progress: Progress = quiet) -> float | None:
        self._driver.seat(self._destination, bounded=False)
        return super().restore(progress)

    def switched(self) -> bool:
        if not Cgroup(self._destination.cgroup).exists():
            return False  # not even prepared
        return super().switched()

    def release(self) -> None:
        if not self._lost:
            self._driver.seat(self._destination, bounded=False)
        super().release()

    def await_first_run(self) -> float | None:
        return await_answer(self._destination, self._driver.console_tail)

    def roll_back(self) -> None:
        super().roll_back()
        self._driver.seat(self._source)
        self.close()

    def _there(self, place: Placement) -> bool:
        return self._driver.alive(place)

    def _clear(self) -> None:
        self._driver.stop(self._destination)

    def _end_source(self) -> None:
        Cgroup(self._source.cgroup).kill()

    def _settle(self) -> None:
        if self._driver.alive(self._destination) and not self._driver.alive(self._source):
            self._driver.stop(self._source)
            self._driver.seat(self._destination)
