"""The steps of a virtual machine's move: libvirt's live migration, stopped at the moments that the machine needs.

    source                                     destination
    ------                                     -----------
    prepare   libvirtds there, limits          key, cgroup; nothing runs
    round n   the migration runs ---- pages -> QEMU receives           (the node runs)
    freeze    CPUs stopped: nothing is dirtied any more
    transfer  the rest, the devices ---------> complete, paused        <- libvirt's own point of no return
    restore                                    seen complete
    release   QEMU killed
    thaw                                       CPUs started, agent answers

libvirt ends the source's QEMU as soon as the destination's is complete, whoever asks for what then. So from there on
`switched` is true and the move can only go on; before that the migration is ended and the source's CPUs run again.
Invariant: the destination's CPUs are started by `thaw` alone, after the source's QEMU was killed.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

from wherry.base.errors import Code, Failed, WherryError
from wherry.fabric.cgroup import Cgroup
from wherry.model.objects import Round
from wherry.model.spec import names_disk
from wherry.model.way import Way
from wherry.node.protocol import During, Place, Transferred, quiet
from wherry.node.vm import job, virt
from wherry.node.vm.agent import await_answer

if TYPE_CHECKING:
    from wherry.node.vm.driver import VmDriver

_LOOK = 0.002
"""Seconds between two looks at a node that is about to stand, or stands."""
_TELL = 0.5
"""Seconds between two words about a round."""
_NEVER_BY_ITSELF = 1
"""Milliseconds of downtime that QEMU may decide on by itself: so little that it waits for us to freeze."""
_PATIENCE, _SLOWEST = 60.0, 2e6
"""What is sent while the node stands is given up after so many seconds and those of its memory at so many bytes/s."""


class VmMover:
    """Moves one virtual machine between two places."""

    def __init__(self, driver: VmDriver, source: Place, destination: Place, way: Way | None = None) -> None:
        self._driver = driver
        self._source, self._destination = source, destination
        self._name = source.node.name
        self._way = way or Way()
        self._rate: float | None = None
        self._connections: dict[str, Any] = {}
        self._job: job.Job | None = None
        self._seen = job.Look()

    def predict(self) -> tuple[int, float]:
        return self._driver.usage(self._source).memory, 0.3

    def pace(self, rate: float | None) -> None:
        self._rate = rate

    def can_round(self) -> bool:
        return True

    def prepare(self) -> None:
        self._driver.stop(self._destination)
        self._driver.ready(self._destination)
        self._connection(self._destination)
        domain = self._domain(self._source)
        if domain is None:
            raise Failed(
                Code.MOVE_FAILED, f"node {self._name} does not run on {self._source.host}", "", "wherry status"
            )
        with virt.told(f"node {self._name} cannot be moved"):
            domain.migrateSetMaxDowntime(_NEVER_BY_ITSELF)

    def round(self, number: int, during: During = quiet) -> Round:
        began, before = time.monotonic(), self._seen
        told = began
        moving = self._begin()
        # When there is little left QEMU stops the node by itself: there will be no further pass.
        while not moving.ended() and moving.seen.passes <= max(before.passes, 1) and not moving.stopped.is_set():
            moving.stopped.wait(_LOOK)
            if time.monotonic() - told > _TELL:
                told = time.monotonic()
                during(moving.seen.text())
        moving.check()
        self._seen = now = moving.seen
        left = now.left if now.passes > max(before.passes, 1) else 0
        return Round(number=number, bytes=now.sent - before.sent, seconds=time.monotonic() - began, dirty=left)

    def freeze(self) -> None:
        # only what sends the rest runs from here on, and everybody waits for it
        group = Cgroup(self._source.cgroup)
        group.prefer(True)
        group.limit(None, None)
        if self._job is not None and self._job.stopped.is_set():
            return
        domain, libvirt = self._domain(self._source), virt.load()
        if domain is not None:
            try:
                if self._way.mode == "post-copy":
                    self._switch(domain)
                else:
                    domain.suspend()
            except libvirt.libvirtError as error:
                if self._source_runs():
                    raise virt.translated(f"node {self._name} could not be frozen", error) from None

    def transfer(self) -> Transferred:
        moving = self._begin()
        deadline = time.monotonic() + self._patience()
        while not self._complete():
            moving.check()
            if time.monotonic() > deadline:
                raise Failed(Code.TIMED_OUT, f"node {self._name} is not at {self._destination.host} yet", "it is slow")
            time.sleep(_LOOK)
        sent, _ = job.cost(self._domain(self._destination))
        return Transferred(bytes=max(sent - self._seen.sent, 0), frozen=0.0)

    def _switch(self, domain: Any) -> None:
        """Begins post-copy: the node is stopped here and runs there, before all its memory is there."""
        moving = self._begin()
        while not moving.seen.passes and not moving.stopped.is_set() and not moving.ended():  # until it has begun
            time.sleep(_LOOK)
        domain.migrateStartPostCopy()

    def restore(self) -> float | None:
        self._driver.seat(self._destination, bounded=False)
        return job.cost(self._domain(self._destination))[1]  # libvirt has it some ms after the copy is whole

    def switched(self) -> bool:
        if not Cgroup(self._destination.cgroup).exists():
            return False  # not even prepared
        if self._runs(self._destination):
            return True  # post-copy
        with contextlib.suppress(WherryError):
            self._end_job()
        return self._domain(self._source) is None and self._complete()

    def release(self) -> None:
        self._driver.seat(self._destination, bounded=False)
        if not self._runs(self._destination):  # else it still fetches memory from the source
            Cgroup(self._source.cgroup).kill()

    def thaw(self) -> None:
        virt.resume(self._domain(self._destination), self._name, self._destination.host)

    def ran_again(self) -> float | None:
        return await_answer(self._destination, self._driver.last_words)

    def roll_back(self) -> None:
        self._end_job()
        self._driver.stop(self._destination)
        domain, libvirt = self._domain(self._source), virt.load()
        if domain is None:
            raise Failed(Code.MOVE_FAILED, f"node {self._name} does not run on {self._source.host}", "its QEMU ended")
        self._driver.seat(self._source)
        if virt.state(domain)[0] == libvirt.VIR_DOMAIN_PAUSED:
            with virt.told(f"node {self._name} could not be thawed"):
                domain.resume()
        self.close()

    def close(self) -> None:
        if self._driver.alive(self._destination) and self._driver.alive(self._source):
            self._outlast()
        with contextlib.suppress(WherryError):
            self._end_job()
        if self._driver.alive(self._destination) and not self._driver.alive(self._source):
            self._driver.stop(self._source)
            self._driver.seat(self._destination)
        for connection in self._connections.values():
            with contextlib.suppress(virt.load().libvirtError):
                connection.close()
        self._connections = {}

    def _begin(self) -> job.Job:
        """The migration, begun when it was not yet."""
        if self._job is None:
            domain = self._domain(self._source)
            if domain is None:
                raise Failed(Code.MOVE_FAILED, f"node {self._name} does not run on {self._source.host}")
            host = self._destination.host
            peer, address = self._driver.daemon(host).peer_uri, self._driver.fabric.host_address(host)
            disks = names_disk(self._source.image)
            self._job = job.Job(domain, peer, address, self._way, self._rate, self._expected, disks)
        return self._job

    def _outlast(self) -> None:
        """Until a node that runs at its destination has fetched all its memory: libvirt then ends the source."""
        deadline = time.monotonic() + self._patience()
        while self._runs(self._destination) and self._driver.alive(self._source) and time.monotonic() < deadline:
            time.sleep(_LOOK)

    def _patience(self) -> float:
        """Seconds until a move is given up."""
        return _PATIENCE + self._source.node.memory / min(_SLOWEST, (self._rate or 8 * _SLOWEST) / 8)

    def _expected(self) -> bool:
        """True when the destination's QEMU waits for the memory."""
        libvirt = virt.load()
        try:
            waits = (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_MIGRATION)
            return virt.state(self._domain(self._destination)) == waits
        except WherryError:  # the host is lost; the migration ends by itself
            return False

    def _end_job(self) -> None:
        """Ends the migration, ours or one that a killed daemon began, unless it is complete."""
        domain = self._domain(self._source)
        if domain is not None:
            job.abort(domain)
        if self._job is not None:
            self._job.wait()
            self._job = None

    def _complete(self) -> bool:
        """True when the destination's copy is the node: libvirt says that it is paused as was asked for, or runs."""
        libvirt = virt.load()
        whole = (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_USER)
        found = virt.state(self._domain(self._destination))
        return found == whole or found[0] == libvirt.VIR_DOMAIN_RUNNING

    def _source_runs(self) -> bool:
        return self._runs(self._source)

    def _runs(self, place: Place) -> bool:
        return virt.state(self._domain(place))[0] == virt.load().VIR_DOMAIN_RUNNING

    def _domain(self, place: Place) -> Any | None:
        return virt.domain(self._connection(place), self._name)

    def _connection(self, place: Place) -> Any:
        found = self._connections.get(place.host)
        if found is None or not found.isAlive():
            found = self._connections[place.host] = self._driver.daemon(place.host).connect()
        return found
