"""A virtual machine's migration that stands still: when it counts as stalled, and how it is taken back."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from wherry.base.errors import Code, Failed
from wherry.node.vm import libvirt_client, migration_job
from wherry.node.vm.live_migration import LiveMigration
from wherry.node.vm.migration_job import STALLED, JobStatus, MigrationJob, MigrationTarget

PAUSED, RUNS = 3, 1


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[MigrationJob]:
    """One that sends nothing from now on."""
    monkeypatch.setattr(migration_job, "_how", lambda *_: (0, {}))
    events = SimpleNamespace(domainEventRegisterAny=lambda *_: 1, domainEventDeregisterAny=lambda *_: None)
    monkeypatch.setattr(
        libvirt_client, "load", lambda: SimpleNamespace(VIR_DOMAIN_EVENT_ID_LIFECYCLE=0, libvirtError=OSError)
    )
    monkeypatch.setattr(migration_job, "job_status", lambda _: JobStatus(passes=1, sent=10, left=1 << 20))
    going = threading.Event()
    domain = SimpleNamespace(connect=lambda: events, migrateToURI3=lambda *_: going.wait(20))
    made = MigrationJob(domain, MigrationTarget("", "", remedy="look"), Any, None, lambda: True)  # type: ignore[arg-type]
    deadline = time.monotonic() + 10
    while not made.seen.passes:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    yield made
    going.set()
    made.wait(10)
    time.sleep(0.1)  # until the thread that looks has seen it


def test_it_has_stalled_when_no_byte_was_sent_for_long(job: MigrationJob) -> None:
    job.check()
    job._advanced -= STALLED - 5
    time.sleep(0.1)  # in which it is looked at again
    job.check()
    job._advanced -= 10
    time.sleep(0.1)
    with pytest.raises(Failed, match="the migration stalled") as failed:
        job.check()
    assert (
        failed.value.code == Code.TIMED_OUT and failed.value.next == "look" and "1.0 MiB are left" in failed.value.why
    )


def test_what_is_sent_is_progress(job: MigrationJob, monkeypatch: pytest.MonkeyPatch) -> None:
    job._advanced -= 2 * STALLED
    monkeypatch.setattr(migration_job, "job_status", lambda _: JobStatus(passes=1, sent=11, left=1))
    deadline = time.monotonic() + 10
    while job.seen.sent != 11:
        assert time.monotonic() < deadline
        time.sleep(0.01)
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
