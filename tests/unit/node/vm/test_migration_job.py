"""A virtual machine's migration without progress: when it counts as stalled, and how it is rolled back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import waiting
from wherry.base.errors import Code, Failed
from wherry.node.vm import libvirt_client, migration_job
from wherry.node.vm.live_migration import LiveMigration
from wherry.node.vm.migration_job import STALLED, JobStatus, MigrationJob, MigrationTarget

PAUSED, RUNS = 3, 1


class Clock:
    """The time of a job, which passes when the test adds to it."""

    def __init__(self) -> None:
        self.now, self.looks, self.over = 1000.0, 0, threading.Event()

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.looks += 1
        self.over.wait(seconds)

    def pass_by(self, seconds: float) -> None:
        """Returns when the job has been looked at since."""
        self.now += seconds
        before = self.looks
        waiting.until(lambda: self.looks >= before + 2, "looks at the job")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(migration_job, "time", clock)
    return clock


@pytest.fixture
def job(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[MigrationJob]:
    """A job that sends nothing from now on."""
    monkeypatch.setattr(migration_job, "_how", lambda *_: (0, {}))
    events = SimpleNamespace(domainEventRegisterAny=lambda *_: 1, domainEventDeregisterAny=lambda *_: None)
    monkeypatch.setattr(
        libvirt_client, "load", lambda: SimpleNamespace(VIR_DOMAIN_EVENT_ID_LIFECYCLE=0, libvirtError=OSError)
    )
    monkeypatch.setattr(migration_job, "job_status", lambda _: JobStatus(passes=1, sent=10, left=1 << 20))
    domain = SimpleNamespace(connect=lambda: events, migrateToURI3=lambda *_: clock.over.wait(300))
    made = MigrationJob(domain, MigrationTarget("", "", remedy="look"), Any, None, lambda: True)  # type: ignore[arg-type]
    waiting.until(lambda: made.seen.passes, "the first pass")
    yield made
    clock.over.set()
    for thread in threading.enumerate():
        if thread.name.startswith("move-vm"):
            thread.join()


def test_it_has_stalled_when_no_byte_was_sent_for_long(job: MigrationJob, clock: Clock) -> None:
    job.check()
    clock.pass_by(STALLED)
    job.check()
    clock.pass_by(1)
    with pytest.raises(Failed, match="the migration stalled") as failed:
        job.check()
    assert (
        failed.value.code == Code.TIMED_OUT and failed.value.next == "look" and "1.0 MiB are left" in failed.value.why
    )


def test_what_is_sent_is_progress(job: MigrationJob, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    clock.pass_by(2 * STALLED)
    monkeypatch.setattr(migration_job, "job_status", lambda _: JobStatus(passes=1, sent=11, left=1))
    waiting.until(lambda: job.seen.sent == 11, "the progress")
    job.check()


class Mover(LiveMigration):
    """Its aborts end only when the destination's copy is gone."""

    def __init__(self, complete: bool) -> None:
        self.did: list[str] = []
        self.complete = complete

    def _abort_job(self, seconds: float = migration_job.ABORT_TIMEOUT) -> None:
        self.did.append("abort")
        if "destroy" not in self.did:
            raise Failed(Code.TIMED_OUT, "libvirt did not end the migration", "", "")

    def _destroy_destination(self) -> None:
        self.did.append("destroy")

    def _is_complete(self) -> bool:
        return self.complete

    def _source_domain(self) -> Any:
        return SimpleNamespace()


Mover.__abstractmethods__ = frozenset()


def test_an_abort_that_waits_for_the_destination_is_helped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libvirt_client, "load", lambda: SimpleNamespace(VIR_DOMAIN_PAUSED=PAUSED))
    monkeypatch.setattr(libvirt_client, "state", lambda _: (RUNS, 0))
    mover = Mover(complete=False)
    mover.roll_back()
    assert mover.did[:3] == ["abort", "destroy", "abort"]


def test_a_copy_that_is_complete_is_not_destroyed() -> None:
    mover = Mover(complete=True)
    with pytest.raises(Failed, match="did not end"):
        mover.roll_back()
    assert mover.did == ["abort"]
