"""The steps of a virtual machine's move: libvirt's live migration of QEMU, stopped when the state machine needs it.

    source                                     destination
    ------                                     -----------
    prepare   limits                           made ready; nothing runs
    round n   the migration runs ---- pages -> QEMU receives           (the node runs)
    freeze    CPUs stopped: nothing is dirtied any more
    transfer  the rest, the devices ---------> complete, paused        <- libvirt's own point of no return
    restore                                    seen complete
    release   QEMU killed
    thaw                                       CPUs started, agent answers

libvirt ends the source's QEMU as soon as the destination's is complete, whoever asks for what then. So from there on
`switched` is true and the move can only go on; before that the migration is ended and the source's CPUs run again.
Invariant: the destination's CPUs are started by `thaw` alone, after the source's QEMU was killed; in post-copy mode by
QEMU, which then has stopped the source's for good. Post-copy that breaks leaves no whole copy: the node is lost.
"""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from typing import Any

from wherry.base.errors import Code, Failed, LostContact, WherryError
from wherry.base.progress import Progress, quiet
from wherry.base.units import format_size
from wherry.model.migration_parameters import MigrationParameters
from wherry.model.objects import Round
from wherry.node.protocol import LONGEST_FREEZE, Placement, Transferred
from wherry.node.vm import libvirt_client, migration_job

_LOOK = 0.002
"""Seconds between two looks at a node that is about to stand, or stands."""
_TELL = 0.5
"""Seconds between two words about a round."""
_NEVER_BY_ITSELF = 1
"""Milliseconds of downtime that QEMU may decide on by itself: so little that it waits for us to freeze."""
_STALLED, _OUTLAST = 30.0, 0.02
"""Seconds without a byte after which memory that is fetched in post-copy mode will not come any more, and those between
two looks. libvirt calls post-copy failed also when only libvirtds lost each other; QEMU then goes on by itself. And it
does not always notice: of a destination whose source's QEMU was killed libvirt 9.0 says that it fetches, for ever."""
_PATIENCE, _SLOWEST = 60.0, 2e6
"""What is sent while the node stands is given up after so many seconds and those of its memory at so many bytes/s."""


class LiveMigration(ABC):
    """Moves one virtual machine between two places. Whose hosts these are is known by who is made of it."""

    def __init__(
        self, uuid: str, source: Placement, destination: Placement, parameters: MigrationParameters | None
    ) -> None:
        self._uuid, self._name = uuid, source.node.name
        self._source, self._destination = source, destination
        self._parameters = parameters or MigrationParameters()
        self._rate: float | None = None
        self._connections: dict[str, Any] = {}
        self._job: migration_job.MigrationJob | None = None
        self._seen = migration_job.JobStatus()
        self._lost: Failed | None = None
        """Said when post-copy broke and what was left of the node at its destination was ended."""
        self._stands = False
        """True when the node was stopped for what was left: its memory is whole at the destination when that runs."""
        self._apart = False
        """True when the node was let run at its destination before all its memory was there."""

    # What depends on the hosts.

    @abstractmethod
    def _open(self, host: str) -> Any:
        """A connection of the mover's own to the host's libvirtd, so that what waits here delays nobody else."""

    def _declared_lost(self, host: str) -> bool:
        """True when an administrator declared the host lost. Emulated hosts never are."""
        return False

    @abstractmethod
    def _peer(self, domain: Any) -> migration_job.MigrationTarget:
        """The destination, for the source's libvirtd."""

    @abstractmethod
    def _there(self, place: Placement) -> bool:
        """True when a copy is at the place, whatever its state."""

    @abstractmethod
    def _clear(self) -> None:
        """Ends what is at the destination."""

    @abstractmethod
    def _end_source(self) -> None:
        """Kills the source's copy."""

    @abstractmethod
    def _settle(self) -> None:
        """What is left to do when all is over."""

    # The steps.

    def limit_rate(self, rate: float | None) -> None:
        self._rate = rate

    def can_round(self) -> bool:
        return True

    def prepare(self) -> None:
        with libvirt_client.translated_errors(f"node {self._name} cannot be moved"):
            self._running().migrateSetMaxDowntime(_NEVER_BY_ITSELF)

    def round(self, number: int, progress: Progress = quiet) -> Round:
        began, before = time.monotonic(), self._seen
        told = began
        moving = self._begin()
        # When there is little left QEMU stops the node by itself: there will be no further pass.
        while not moving.ended() and moving.seen.passes <= max(before.passes, 1) and not moving.stopped.is_set():
            moving.stopped.wait(_LOOK)
            if time.monotonic() - told > _TELL:
                told = time.monotonic()
                progress(moving.seen.text())
        moving.check()
        self._seen = now = moving.seen
        left = now.left if now.passes > max(before.passes, 1) else 0
        return Round(number=number, bytes=now.sent - before.sent, seconds=time.monotonic() - began, dirty=left)

    def freeze(self, post_copy: bool = False) -> float | None:
        self._stands = True
        if self._job is not None and (stood := self._job.stood()) is not None:
            return stood  # QEMU found so little left that it stopped the CPUs by itself
        domain, libvirt = self._domain(self._source), libvirt_client.load()
        if domain is not None:
            try:
                if post_copy:
                    self._stands = False
                    return self._switch(domain)
                else:
                    domain.suspend()
            except libvirt.libvirtError as error:
                if self._runs(self._source):
                    raise libvirt_client.translated(f"node {self._name} could not be frozen", error) from None
        return None

    def transfer(self, progress: Progress = quiet) -> Transferred:
        moving = self._begin()
        deadline = time.monotonic() + self._patience()
        while not self._complete():
            progress("")
            moving.check()
            if time.monotonic() > deadline:
                raise Failed(Code.TIMED_OUT, f"node {self._name} is not at {self._destination.host} yet", "it is slow")
            time.sleep(_LOOK)
        sent, _ = migration_job.cost(self._domain(self._destination))
        return Transferred(bytes=max(sent - self._seen.sent, 0), frozen=0.0)

    def restore(self, progress: Progress = quiet) -> float | None:
        return migration_job.cost(self._domain(self._destination))[1]  # libvirt has it some ms after the copy is whole

    def switched(self) -> bool:
        if self._fetches():
            return True
        with contextlib.suppress(WherryError):
            self._end_job()
        return self._domain(self._source) is None and self._complete()

    def release(self) -> None:
        if self._lost:
            raise self._lost
        self._apart = not self._stands and self._fetching()  # who asks the source just then waits for its end
        if not self._apart:
            self._end_source()
        elif not self._runs(self._destination):  # post-copy failed, and libvirt starts no CPUs then
            self._give_up()

    def thaw(self) -> None:
        if not self._runs(self._destination):  # while it fetches, libvirt keeps whoever resumes it waiting
            libvirt_client.resume(self._domain(self._destination), self._name, self._destination.host)

    def roll_back(self) -> None:
        self._end_job()
        domain, libvirt = self._running(), libvirt_client.load()
        self._clear()
        if libvirt_client.state(domain)[0] == libvirt.VIR_DOMAIN_PAUSED:
            with libvirt_client.translated_errors(f"node {self._name} could not be thawed"):
                domain.resume()

    def close(self) -> None:
        try:
            if self._apart:
                self._outlast()
            with contextlib.suppress(WherryError):
                self._end_job()
            self._settle()
        finally:
            for connection in self._connections.values():
                with contextlib.suppress(libvirt_client.load().libvirtError):
                    connection.close()
            self._connections = {}

    def _fetches(self) -> bool:
        """True in post-copy mode from the moment on from which the source's copy cannot run any more. TIMED_OUT.

        The way of the move is not asked: whoever takes over after a killed daemon does not know it.
        """
        deadline = time.monotonic() + _STALLED
        while time.monotonic() < deadline:
            try:
                if self._runs(self._destination) or self._broken(self._destination):
                    return True
            except LostContact:
                return self._left()
            if not self._left():
                return False
            time.sleep(_OUTLAST)  # the CPUs of the destination's copy are about to be started
        raise Failed(Code.TIMED_OUT, f"node {self._name} stands at both ends", "post-copy has begun and does not go on")

    def _left(self) -> bool:
        """True when the source's copy is what post-copy left of it, from which memory is fetched."""
        libvirt = libvirt_client.load()
        left = (libvirt.VIR_DOMAIN_PAUSED_POSTCOPY, libvirt.VIR_DOMAIN_PAUSED_POSTCOPY_FAILED)
        state, why = libvirt_client.state(self._domain(self._source))
        return state == libvirt.VIR_DOMAIN_PAUSED and why in left

    def _switch(self, domain: Any) -> float:
        """Begins post-copy: the node is stopped here and runs there, before all its memory is there. Seconds since."""
        moving = self._begin()
        while not moving.seen.passes and not moving.stopped.is_set() and not moving.ended():  # until it has begun
            time.sleep(_LOOK)
        began = time.monotonic()
        domain.migrateStartPostCopy()
        return moving.stood() or time.monotonic() - began  # libvirt's word may be late, and peers wait for us now

    def _begin(self) -> migration_job.MigrationJob:
        """The migration, begun when it was not yet."""
        if self._job is None:
            domain = self._running()
            self._job = migration_job.MigrationJob(
                domain, self._peer(domain), self._parameters, self._rate, self._expected
            )
        return self._job

    def _outlast(self) -> None:
        """Until a node that runs at its destination has fetched all its memory: libvirt then ends the source.

        MOVE_FAILED when that broke for good; TIMED_OUT when nothing comes and nobody says that it broke.
        """
        sent, since = -1, time.monotonic()
        while self._fetching():
            now = self._how_far().sent
            if now != sent:
                sent, since = now, time.monotonic()
            elif time.monotonic() - since > _STALLED:
                gone = self._broken(self._destination) or self._domain(self._source) is None
                if gone or self._broken(self._source):
                    self._give_up()
                what = f"node {self._name} has not all its memory at {self._destination.host}"
                raise Failed(Code.TIMED_OUT, what, f"none came for {_STALLED:.0f} s")
            time.sleep(_OUTLAST)

    def _fetching(self) -> bool:
        """True while memory of a node that runs at its destination is at its source, or is lost."""
        libvirt = libvirt_client.load()
        state, why = libvirt_client.state(self._domain(self._destination))
        if state != libvirt.VIR_DOMAIN_RUNNING:
            return (state, why) == (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_POSTCOPY_FAILED)
        if why in (libvirt.VIR_DOMAIN_RUNNING_POSTCOPY, libvirt.VIR_DOMAIN_RUNNING_POSTCOPY_FAILED):
            return True
        return self._there(self._source) and self._left()

    def _broken(self, place: Placement) -> bool:
        """True when libvirt says of the copy there that its post-copy failed."""
        libvirt = libvirt_client.load()
        return libvirt_client.state(self._domain(place)) in (
            (libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_RUNNING_POSTCOPY_FAILED),
            (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_POSTCOPY_FAILED),
        )

    def _how_far(self) -> migration_job.JobStatus:
        """The migration as the source tells of it; zeros when it is gone or silent."""
        with contextlib.suppress(LostContact):
            return migration_job.job_status(self._domain(self._source))
        return migration_job.JobStatus()

    def _give_up(self) -> None:
        """Ends what is at the destination, which waits for ever for memory that it lacks. MOVE_FAILED, then and later.

        What is left at the source cannot run without what the node wrote since; it is ended by who finds the node lost.
        """
        what = f"node {self._name} lost the part of its memory that was not at {self._destination.host} yet"
        left = self._how_far().left
        why = f"{format_size(left)} were left at {self._source.host}" if left else f"{self._source.host} has it no more"
        self._lost = Failed(Code.MOVE_FAILED, what, f"post-copy broke: {why}", "wherry up FILE starts it again")
        self._clear()
        raise self._lost

    def _patience(self) -> float:
        """Seconds until a move is given up."""
        most = _PATIENCE + self._source.node.memory / min(_SLOWEST, (self._rate or 8 * _SLOWEST) / 8)
        return min(most, LONGEST_FREEZE) if self._stands else most

    def _expected(self) -> bool:
        """True when the destination's QEMU waits for the memory."""
        libvirt = libvirt_client.load()
        try:
            waits = (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_MIGRATION)
            return libvirt_client.state(self._domain(self._destination)) == waits
        except WherryError:  # the host is lost; the migration ends by itself
            return False

    def _end_job(self) -> None:
        """Ends the migration, ours or one that a killed daemon began, unless it is complete."""
        domain = self._domain(self._source)
        if domain is not None:
            migration_job.abort(domain)
        if self._job is not None:
            self._job.wait()
            self._job = None

    def _complete(self) -> bool:
        """True when the destination's copy is the node: libvirt says that it is paused as was asked for, or runs."""
        libvirt = libvirt_client.load()
        whole = (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_USER)
        found = libvirt_client.state(self._domain(self._destination))
        return found == whole or found[0] == libvirt.VIR_DOMAIN_RUNNING

    def _runs(self, place: Placement) -> bool:
        return libvirt_client.state(self._domain(place))[0] == libvirt_client.load().VIR_DOMAIN_RUNNING

    def _running(self) -> Any:
        """The source's domain. MOVE_FAILED when there is none."""
        domain = self._domain(self._source)
        if domain is None:
            what = f"node {self._name} does not run on {self._source.host}"
            raise Failed(Code.MOVE_FAILED, what, "its virtual machine ended", "wherry status")
        return domain

    def _domain(self, place: Placement) -> Any | None:
        """The copy at a placement; None when there is none, or none that counts, as its host is declared lost."""
        if self._declared_lost(place.host):
            return None
        return libvirt_client.by_id(self._connection(place), self._uuid)

    def _connection(self, place: Placement) -> Any:
        found = self._connections.get(place.host)
        if found is None or not found.isAlive():
            found = self._connections[place.host] = self._open(place.host)
        return found
