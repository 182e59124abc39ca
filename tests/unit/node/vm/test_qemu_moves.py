"""Moves between real hosts that run QEMU: their steps and faults, with a libvirt in memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from qemuworld import BROKEN, FETCHED, FETCHES, LACKS, RUNS, STANDS, WAITS, Machine, World, driver, place, world

import waiting
from wherry.base.errors import Code, Failed, LostContact
from wherry.model.migration_parameters import MigrationParameters
from wherry.node.vm import libvirt_client, live_migration, migration_job
from wherry.node.vm.live_migration import LiveMigration
from wherry.node.vm.migration_job import STALLED, JobStatus, MigrationJob, MigrationTarget
from wherry.node.vm.real.qemu import QemuDriver, QemuMover

__all__ = ["driver", "world"]  # fixtures

# Moves.


def moved(driver: QemuDriver, way: MigrationParameters | None = None) -> QemuMover:
    """A mover that has done everything before the commit."""
    mover = driver.mover(place("q1"), place("q2"), way)
    mover.limit_rate(None)
    mover.prepare()
    first = mover.round(1)
    assert first.bytes == 800 and first.dirty == 70
    mover.freeze()
    assert mover.transfer().bytes == 100 and mover.restore() == 0.03
    return mover


def test_a_move(world: World, driver: QemuDriver) -> None:
    driver.start(place("q1"))
    mover = moved(driver)
    (there,) = world.machines["q2"]
    assert there.now == STANDS and "br-q2" in there.description and "initrd" not in there.description
    waiting.until(lambda: not world.machines["q1"], "the end of the source's copy")
    assert mover.switched()
    for _ in range(2):
        mover.release()
        mover.thaw()
    assert mover.await_first_run() == 0.1
    mover.close()
    assert world.states() == [[], [RUNS]] and not [name for name in world.files["q2"] if name.endswith("initrd")]
    back = driver.mover(place("q2"), place("q1"))
    back.prepare()
    back.round(1)
    back.freeze()
    back.transfer()
    back.release()
    back.thaw()
    back.close()
    assert world.states() == [[RUNS], []]


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("step", ["prepare", "round", "freeze"])
def test_a_move_is_taken_back(world: World, driver: QemuDriver, step: str, anew: bool) -> None:
    """By the same mover, or by that of the next daemon."""
    driver.start(place("q1"))
    world.breaks = step == "freeze"
    mover = driver.mover(place("q1"), place("q2"))
    mover.prepare()
    if step != "prepare":
        mover.round(1)
    if step == "freeze":
        mover.freeze()
    taken = driver.mover(place("q1"), place("q2")) if anew else mover
    assert not taken.switched()
    taken.roll_back()
    taken.close()
    assert world.states() == [[RUNS], []]


def test_a_transfer_that_was_cancelled_is_taken_back(
    world: World, driver: QemuDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node is frozen, and the rest takes long: a waiting user may cancel the move."""
    driver.start(place("q1"))
    mover = driver.mover(place("q1"), place("q2"))
    mover.prepare()
    mover.round(1)
    monkeypatch.setattr(Machine, "suspend", lambda machine: setattr(machine, "now", STANDS))  # the rest does not come
    mover.freeze()

    def cancel(_text: str) -> None:
        raise Failed(Code.CANCELLED, "the move was cancelled")

    with pytest.raises(Failed, match="cancelled"):
        mover.transfer(cancel)
    assert not mover.switched()
    mover.roll_back()
    mover.close()
    assert world.states() == [[RUNS], []]


def test_an_orphan_of_a_host_that_died_is_ended_when_it_answers(world: World, driver: QemuDriver) -> None:
    driver.start(place("q1"))
    mover = driver.mover(place("q1"), place("q2"))
    mover.prepare()
    mover.round(1)
    world.dead.add("q2")
    world.breaks = True
    mover.freeze()
    with pytest.raises((Failed, LostContact)):
        mover.transfer()
    assert not mover.switched()
    mover.roll_back()
    mover.close()
    assert world.states() == [[RUNS], [WAITS]] and driver.orphans() == [("c-0", "q2")]
    with pytest.raises(LostContact):
        driver.end_orphan("c-0", "q2")
    world.dead.clear()
    assert driver.alive(place("q1")) and world.states() == [[RUNS], [WAITS]]  # to look changes nothing
    driver.end_orphan("c-0", "q2")
    assert world.states() == [[RUNS], []] and driver.orphans() == []


def test_a_migration_that_fails_says_what_to_look_at(world: World, driver: QemuDriver) -> None:
    driver.start(place("q1"))
    world.breaks = True
    mover = driver.mover(place("q1"), place("q2"))
    mover.prepare()
    mover.round(1)
    mover.freeze()
    with pytest.raises(Failed) as caught:
        mover.transfer()
    assert "virsh -c qemu+tls://10.0.0.2/system version" in caught.value.next and "49152" in caught.value.next
    mover.roll_back()


def test_a_move_whose_source_is_gone_goes_on(world: World, driver: QemuDriver) -> None:
    """The daemon was killed after libvirt's point of no return."""
    driver.start(place("q1"))
    moved(driver)
    waiting.until(lambda: not world.machines["q1"], "the end of the source's copy")
    anew = driver.mover(place("q1"), place("q2"))
    assert anew.switched()
    anew.release()
    anew.thaw()
    anew.close()
    assert world.states() == [[], [RUNS]]


def test_a_machine_that_qemu_stopped_by_itself_stands_from_then_on(world: World, driver: QemuDriver) -> None:
    driver.start(place("q1"))
    mover = driver.mover(place("q1"), place("q2"))
    mover.prepare()
    mover.round(1)
    world.told[-1](None, None, World.VIR_DOMAIN_EVENT_SUSPENDED, 0, None)
    assert mover._job
    mover._job._stopped_at -= 1000
    world.told[-1](None, None, World.VIR_DOMAIN_EVENT_STOPPED, 0, None)  # the source is ended later
    stood = mover.freeze()
    assert stood is not None and stood >= 1000
    assert driver.mover(place("q1"), place("q2")).freeze() is None  # nobody stopped it but this


def test_a_destination_that_is_silent_decides_nothing(world: World, driver: QemuDriver) -> None:
    """The source is gone and whether the destination's copy is whole is unknown: both are left as they are."""
    driver.start(place("q1"))
    mover = moved(driver)
    waiting.until(lambda: not world.machines["q1"], "the end of the source's copy")
    world.dead.add("q2")
    with pytest.raises(LostContact):
        mover.switched()
    with pytest.raises(Failed):
        mover.roll_back()
    world.dead.clear()
    assert world.states() == [[], [STANDS]] and mover.switched()


def test_own_connections(world: World, driver: QemuDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiting move delays no other request to the same host."""
    opened: list[str] = []
    monkeypatch.setattr(world, "open", lambda host: opened.append(host) or world.connect(host), raising=False)
    driver.start(place("q1"))
    mover = moved(driver)
    mover.release()
    assert set(opened) == {"q1", "q2"}
    assert issubclass(QemuMover, live_migration.LiveMigration)


# Post-copy of nodes on real hosts, with a libvirt in memory: it goes well, or it breaks, and the node is lost.


def begun(driver: QemuDriver) -> QemuMover:
    """A mover whose node was let run at its destination without the rest of its memory, before the commit."""
    driver.start(place("q1"))
    mover = driver.mover(place("q1"), place("q2"), MigrationParameters(mode="post-copy"))
    mover.prepare()
    mover.round(1)
    mover.freeze(post_copy=True)
    mover.transfer()
    return mover


def test_post_copy(world: World, driver: QemuDriver) -> None:
    mover = begun(driver)
    assert world.states() == [[FETCHED], [FETCHES]]
    anew = driver.mover(place("q1"), place("q2"))  # which does not know the way
    assert mover.switched() and anew.switched()
    world.dead.add("q2")
    assert driver.mover(place("q1"), place("q2")).switched()  # the source's copy cannot run any more
    world.dead.clear()
    mover.release()
    mover.thaw()
    assert world.states() == [[FETCHED], [FETCHES]]  # the rest still comes from there
    world.machines["q1"][0].stands.set()
    mover.close()
    assert world.states() == [[], [RUNS]]


def fetching(driver: QemuDriver) -> QemuMover:
    """The same after the commit."""
    mover = begun(driver)
    mover.release()
    mover.thaw()
    return mover


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize(
    "how", ["the wire broke", "the source's QEMU died", "it died unseen", "the source's host died"]
)
def test_post_copy_that_breaks_loses_the_node(
    world: World, driver: QemuDriver, monkeypatch: pytest.MonkeyPatch, how: str, anew: bool
) -> None:
    """And reports it: a copy that waits for memory that will not come is ended, and each step fails from then on."""
    monkeypatch.setattr(live_migration, "_STALLED", 0.02)
    mover, (source,), (there,) = fetching(driver), world.machines["q1"], world.machines["q2"]
    world.severed = True
    source.stands.set()
    waiting.until(lambda: world.states() == [[BROKEN], [LACKS]], "the break")
    if how in ("the source's QEMU died", "it died unseen"):
        source.destroy()
        there.now = FETCHES if how == "it died unseen" else LACKS
    elif how == "the source's host died":
        world.dead.add("q1")
    if anew:
        mover = driver.mover(place("q1"), place("q2"))
        mover.release()
        mover.thaw()
    with pytest.raises(Failed, match="lost the part of its memory") as caught:
        mover.close()
    assert "wherry up" in caught.value.next and not driver.alive(place("q2"))
    with pytest.raises(Failed, match="lost the part of its memory"):
        mover.release()
    assert there not in world.machines["q2"]


def test_post_copy_that_goes_on_though_libvirt_gave_it_up(
    world: World, driver: QemuDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the libvirtds lose each other and their QEMUs do not."""
    mover, (source,), (there,) = fetching(driver), world.machines["q1"], world.machines["q2"]
    source.now, there.now = BROKEN, LACKS
    now, sent = 0.0, 800

    def stats(_flags: int = 0) -> dict[str, int]:
        nonlocal sent
        sent += 1
        return {"iteration": 3, "processed": sent, "remaining": 70}

    def sleep(_seconds: float) -> None:
        nonlocal now
        now += live_migration._STALLED / 2
        if now > 5 * live_migration._STALLED:
            there.now = RUNS
            source.stands.set()

    monkeypatch.setattr(live_migration, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    monkeypatch.setattr(source, "jobStats", stats)
    mover.close()
    assert world.states() == [[], [RUNS]]


def test_memory_that_does_not_come_though_nothing_broke_ends_nothing(
    world: World, driver: QemuDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_migration, "_STALLED", 3600.0)
    mover = fetching(driver)
    with pytest.raises(Failed) as caught, monkeypatch.context() as patch:
        patch.setattr(live_migration, "_STALLED", 0.02)
        mover.close()
    assert caught.value.code == Code.TIMED_OUT and world.states() == [[FETCHED], [FETCHES]]
    world.machines["q1"][0].stands.set()
    mover.release()
    mover.thaw()
    mover.close()
    assert world.states() == [[], [RUNS]]


def test_hybrid_that_is_not_told_to_switch(world: World, driver: QemuDriver) -> None:
    """The node stands for the rest, and libvirt lets it run at its destination: nothing is missing there."""
    driver.start(place("q1"))
    mover = driver.mover(place("q1"), place("q2"), MigrationParameters(mode="hybrid"))
    mover.limit_rate(8e7)
    mover.prepare()
    mover.round(1)
    mover.freeze()
    mover.transfer()
    mover.release()
    mover.thaw()
    mover.close()
    assert world.states() == [[], [RUNS]]
    assert world.params["bandwidth"] == world.params["bandwidth.postcopy"] == 9


# A virtual machine's migration without progress: when it counts as stalled, and how it is rolled back.


PAUSED, RUNNING = 3, 1


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
    monkeypatch.setattr(libvirt_client, "state", lambda _: (RUNNING, 0))
    mover = Mover(complete=False)
    mover.roll_back()
    assert mover.did[:3] == ["abort", "destroy", "abort"]


def test_a_copy_that_is_complete_is_not_destroyed() -> None:
    mover = Mover(complete=True)
    with pytest.raises(Failed, match="did not end"):
        mover.roll_back()
    assert mover.did == ["abort"]
