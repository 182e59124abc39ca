"""The steps of a virtual machine's move: libvirt's live migration of QEMU, driven by the state machine.

    source                                     destination
    ------                                     -----------
    prepare   limits                           set up; nothing runs
    round n   the migration runs ---- pages -> QEMU receives           (the node runs)
    freeze    CPUs stopped: no page gets dirty any more
    transfer  remaining pages, devices ------> complete, paused        <- libvirt's own point of no return
    restore                                    found complete
    release   QEMU killed
    thaw                                       CPUs started, agent answers

libvirt destroys the source domain once the destination is complete; this cannot be prevented. From then on `switched`
is true and the move can only be completed; before that, a roll-back aborts the migration and resumes the source's CPUs.
Invariant: only `thaw` starts the destination's CPUs, after the source's QEMU was killed; in post-copy mode QEMU starts
them, after it stopped the source's for good. If post-copy fails, no complete copy exists: the node is lost.
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
from wherry.model.records import Round
from wherry.node.protocol import LONGEST_FREEZE, Placement, Transferred
from wherry.node.vm import libvirt_client, migration_job

_POLL_INTERVAL = 0.002
"""Polling interval in seconds while a node is about to be frozen, or is."""
_PROGRESS_INTERVAL = 0.5
"""Seconds between two progress reports of a round."""
_QEMU_DOWNTIME = 1
"""Limit in milliseconds for the downtime that QEMU may choose: too small for it to stop the node before `freeze`."""
_STALLED, _POST_COPY_INTERVAL = migration_job.STALLED, 0.02
"""Post-copy counts as failed after so many seconds without a byte; polling interval in seconds. The domain state alone
does not decide: libvirt reports a failure also when only the libvirtds lost each other, and QEMU completes post-copy
nevertheless; and libvirt 9.0 reports an active post-copy for ever when the source's QEMU was killed."""
_TRANSFER_TIMEOUT, _SLOWEST = 60.0, 2e6
"""`transfer` times out after so many seconds, plus the time to send the node's memory at so many bytes/s."""


class LiveMigration(ABC):
    """Moves one virtual machine between two placements. Subclasses are for the kinds of hosts: emulated or real."""

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
        """Set when post-copy failed and the incomplete copy at the destination was destroyed."""
        self._stop_and_copy = False
        """True for stop-and-copy: all memory is at the destination before the node runs there."""
        self._in_post_copy = False
        """True while the node runs at its destination (post-copy) and its memory is not complete there."""

    # Host-specific operations.

    @abstractmethod
    def _open(self, host: str) -> Any:
        """A connection to the host's libvirtd for this mover alone: blocking calls on it delay no other operation."""

    def _declared_lost(self, host: str) -> bool:
        """True when an administrator declared the host lost (`wherry host lost`). Emulated hosts never are."""
        return False

    @abstractmethod
    def _target(self, domain: Any) -> migration_job.MigrationTarget:
        """The destination as the source's libvirtd addresses it."""

    @abstractmethod
    def _exists(self, placement: Placement) -> bool:
        """True when a copy exists at the placement, in any state."""

    @abstractmethod
    def _destroy_destination(self) -> None:
        """Destroys the copy at the destination."""

    @abstractmethod
    def _destroy_source(self) -> None:
        """Kills the source's copy."""

    @abstractmethod
    def _clean_up(self) -> None:
        """Cleans up after the migration ended, for better or worse."""

    # The steps.

    def limit_rate(self, rate: float | None, spare: float = 0.0) -> None:
        self._rate = rate

    def can_round(self) -> bool:
        return True

    def prepare(self) -> None:
        with libvirt_client.translated_errors(f"node {self._name} cannot be moved"):
            self._source_domain().migrateSetMaxDowntime(_QEMU_DOWNTIME)

    def round(self, number: int, progress: Progress = quiet) -> Round:
        began, before = time.monotonic(), self._seen
        told = began
        moving = self._begin()
        # With little left to send QEMU stops the node by itself: no further pass begins then.
        while not moving.ended() and moving.seen.passes <= max(before.passes, 1) and not moving.stopped.is_set():
            moving.stopped.wait(_POLL_INTERVAL)
            moving.check()
            if time.monotonic() - told > _PROGRESS_INTERVAL:
                told = time.monotonic()
                progress(moving.seen.text())
        moving.check()
        self._seen = now = moving.seen
        left = now.left if now.passes > max(before.passes, 1) else 0
        return Round(number=number, bytes=now.sent - before.sent, seconds=time.monotonic() - began, dirty=left)

    def freeze(self, post_copy: bool = False) -> float | None:
        self._stop_and_copy = True
        if self._job is not None and (stood := self._job.stood()) is not None:
            return stood  # QEMU had so little left to send that it stopped the CPUs by itself
        domain, libvirt = self._domain(self._source), libvirt_client.load()
        if domain is not None:
            try:
                if post_copy:
                    self._stop_and_copy = False
                    return self._start_post_copy(domain)
                else:
                    domain.suspend()
            except libvirt.libvirtError as error:
                if self._is_running(self._source):
                    raise libvirt_client.translated(f"node {self._name} could not be frozen", error) from None
        return None

    def settled(self) -> bool:
        return True

    def transfer(self, progress: Progress = quiet) -> Transferred:
        moving = self._begin()
        deadline = time.monotonic() + self._transfer_timeout()
        while not self._is_complete():
            progress("")
            moving.check()
            if time.monotonic() > deadline:
                what = f"node {self._name} did not arrive at {self._destination.host} in time"
                why = f"its memory was not sent within {self._transfer_timeout():.0f} s"
                raise Failed(Code.TIMED_OUT, what, why, "move it over a faster link, or with a higher --bandwidth")
            time.sleep(_POLL_INTERVAL)
        sent, _ = migration_job.cost(self._domain(self._destination))
        return Transferred(bytes=max(sent - self._seen.sent, 0), frozen=0.0)

    def restore(self, progress: Progress = quiet) -> float | None:
        domain = self._domain(self._destination)
        if domain is None:
            what = f"node {self._name} did not survive its arrival at {self._destination.host}"
            raise Failed(Code.MOVE_FAILED, what, "its virtual machine ended", f"wherry logs --node {self._name}")
        return migration_job.cost(domain)[1]  # libvirt reports it some ms after the copy is complete

    def problem(self) -> str:
        return ""  # libvirt's job ends with QEMU, and each look asks for the job

    def switched(self) -> bool:
        if self._post_copy_begun():
            return True
        with contextlib.suppress(WherryError):
            self._abort_job(migration_job.ABORT_SOON)
        return self._domain(self._source) is None and self._is_complete()

    def release(self) -> None:
        if self._lost:
            raise self._lost
        self._in_post_copy = (
            not self._stop_and_copy and self._post_copy_unfinished()
        )  # a call to the source would block until it ends now
        if not self._in_post_copy:
            self._destroy_source()
        elif not self._is_running(self._destination):  # post-copy failed, and libvirt did not start the CPUs
            self._give_node_up()

    def thaw(self) -> None:
        if not self._is_running(self._destination):  # during post-copy resume() would block
            libvirt_client.resume(self._domain(self._destination), self._name, self._destination.host)

    def complete(self) -> None:
        return None  # libvirt ends the source's copy itself, for which `close` waits

    def roll_back(self) -> None:
        try:
            self._abort_job(migration_job.ABORT_SOON)
        except Failed:
            if self._is_complete():
                raise
            self._destroy_destination()  # the abort waits for it, if its QEMU does not answer
            self._abort_job()
        domain, libvirt = self._source_domain(), libvirt_client.load()
        self._destroy_destination()
        if libvirt_client.state(domain)[0] == libvirt.VIR_DOMAIN_PAUSED:
            with libvirt_client.translated_errors(f"node {self._name} could not be thawed"):
                domain.resume()

    def close(self) -> None:
        try:
            if self._in_post_copy:
                self._await_post_copy()
            with contextlib.suppress(WherryError):
                self._abort_job()
            self._clean_up()
        finally:
            for connection in self._connections.values():
                with contextlib.suppress(libvirt_client.load().libvirtError):
                    connection.close()
            self._connections = {}

    def _post_copy_begun(self) -> bool:
        """True once post-copy has begun, so that the source's copy can never run again. TIMED_OUT.

        Decided from the domains' states only: after a crash of the daemon the parameters of the move are not known.
        """
        deadline = time.monotonic() + _STALLED
        while time.monotonic() < deadline:
            try:
                if self._is_running(self._destination) or self._post_copy_failed(self._destination):
                    return True
            except LostContact:
                return self._serves_pages()
            if not self._serves_pages():
                return False
            time.sleep(_POST_COPY_INTERVAL)  # the destination's CPUs are about to be started
        what = f"node {self._name} is stopped at both hosts"
        raise Failed(Code.TIMED_OUT, what, f"post-copy has begun and did not proceed for {_STALLED:.0f} s")

    def _serves_pages(self) -> bool:
        """True when the source's copy was stopped by post-copy and only serves its pages."""
        libvirt = libvirt_client.load()
        left = (libvirt.VIR_DOMAIN_PAUSED_POSTCOPY, libvirt.VIR_DOMAIN_PAUSED_POSTCOPY_FAILED)
        state, why = libvirt_client.state(self._domain(self._source))
        return state == libvirt.VIR_DOMAIN_PAUSED and why in left

    def _start_post_copy(self, domain: Any) -> float:
        """Switches to post-copy: the node stops here and resumes there. Returns the seconds since it stopped."""
        moving = self._begin()
        while not moving.seen.passes and not moving.stopped.is_set() and not moving.ended():  # until QEMU sends
            time.sleep(_POLL_INTERVAL)
        began = time.monotonic()
        domain.migrateStartPostCopy()
        return moving.stood() or time.monotonic() - began  # libvirt's event may be late

    def _begin(self) -> migration_job.MigrationJob:
        """The running migration; started by the first call."""
        if self._job is None:
            domain = self._source_domain()
            self._job = migration_job.MigrationJob(
                domain, self._target(domain), self._parameters, self._rate, self._destination_ready
            )
        return self._job

    def _await_post_copy(self) -> None:
        """Returns when post-copy is complete; libvirt then destroys the source domain.

        MOVE_FAILED when post-copy failed for good; TIMED_OUT when it stalls and libvirt reports no failure.
        """
        sent, since = -1, time.monotonic()
        while self._post_copy_unfinished():
            now = self._status().sent
            if now != sent:
                sent, since = now, time.monotonic()
            elif time.monotonic() - since > _STALLED:
                gone = self._post_copy_failed(self._destination) or self._domain(self._source) is None
                if gone or self._post_copy_failed(self._source):
                    self._give_node_up()
                what = f"the memory of node {self._name} is incomplete at {self._destination.host}"
                raise Failed(Code.TIMED_OUT, what, f"post-copy stalled for {_STALLED:.0f} s", "wherry status")
            time.sleep(_POST_COPY_INTERVAL)

    def _post_copy_unfinished(self) -> bool:
        """True while post-copy is active or has failed: part of the node's memory is at its source only, or lost."""
        libvirt = libvirt_client.load()
        state, why = libvirt_client.state(self._domain(self._destination))
        if state != libvirt.VIR_DOMAIN_RUNNING:
            return (state, why) == (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_POSTCOPY_FAILED)
        if why in (libvirt.VIR_DOMAIN_RUNNING_POSTCOPY, libvirt.VIR_DOMAIN_RUNNING_POSTCOPY_FAILED):
            return True
        return self._exists(self._source) and self._serves_pages()

    def _post_copy_failed(self, placement: Placement) -> bool:
        """True when libvirt reports a failed post-copy of the copy at the placement."""
        libvirt = libvirt_client.load()
        return libvirt_client.state(self._domain(placement)) in (
            (libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_RUNNING_POSTCOPY_FAILED),
            (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_POSTCOPY_FAILED),
        )

    def _status(self) -> migration_job.JobStatus:
        """The migration's status at the source; zeros when the domain is gone or its host silent."""
        with contextlib.suppress(LostContact):
            return migration_job.job_status(self._domain(self._source))
        return migration_job.JobStatus()

    def _give_node_up(self) -> None:
        """Destroys the incomplete copy at the destination and raises MOVE_FAILED, as `release` does from then on.

        The source's copy cannot run either, as it lacks later writes; it is destroyed when the node is found lost.
        """
        what = f"node {self._name} lost the part of its memory that was not at {self._destination.host} yet"
        left = self._status().left
        why = f"{format_size(left)} were left at {self._source.host}" if left else f"{self._source.host} has no copy"
        self._lost = Failed(Code.MOVE_FAILED, what, f"post-copy failed: {why}", "wherry up FILE starts it again")
        self._destroy_destination()
        raise self._lost

    def _transfer_timeout(self) -> float:
        """Seconds after which `transfer` times out."""
        most = _TRANSFER_TIMEOUT + self._source.node.memory / min(_SLOWEST, (self._rate or 8 * _SLOWEST) / 8)
        return min(most, LONGEST_FREEZE) if self._stop_and_copy else most

    def _destination_ready(self) -> bool:
        """True when the destination's QEMU is ready to receive."""
        libvirt = libvirt_client.load()
        try:
            waits = (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_MIGRATION)
            return libvirt_client.state(self._domain(self._destination)) == waits
        except (WherryError, OSError):  # the host is silent; the migration fails by itself
            return False

    def _abort_job(self, seconds: float = migration_job.ABORT_TIMEOUT) -> None:
        """Aborts the migration unless it is complete, also a migration that an earlier daemon started. TIMED_OUT."""
        domain = self._domain(self._source)
        if domain is not None:
            migration_job.abort(domain, seconds)
        if self._job is not None:
            self._job.wait()
            self._job = None

    def _is_complete(self) -> bool:
        """True when the destination's copy is complete: libvirt reports it running, or paused by VIR_MIGRATE_PAUSED."""
        libvirt = libvirt_client.load()
        whole = (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_USER)
        found = libvirt_client.state(self._domain(self._destination))
        return found == whole or found[0] == libvirt.VIR_DOMAIN_RUNNING

    def _is_running(self, placement: Placement) -> bool:
        return libvirt_client.state(self._domain(placement))[0] == libvirt_client.load().VIR_DOMAIN_RUNNING

    def _source_domain(self) -> Any:
        """The source's domain. MOVE_FAILED when it does not exist."""
        domain = self._domain(self._source)
        if domain is None:
            what = f"node {self._name} does not run on {self._source.host}"
            raise Failed(Code.MOVE_FAILED, what, "its virtual machine ended", "wherry status")
        return domain

    def _domain(self, placement: Placement) -> Any | None:
        """The copy at a placement; None when there is none or its host is declared lost."""
        if self._declared_lost(placement.host):
            return None
        return libvirt_client.by_id(self._connection(placement), self._uuid)

    def _connection(self, placement: Placement) -> Any:
        found = self._connections.get(placement.host)
        if found is None or not libvirt_client.is_alive(found):
            found = self._connections[placement.host] = self._open(placement.host)
        return found
