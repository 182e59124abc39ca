"""Post-copy of nodes on real hosts, with a libvirt in memory: it goes well, or it breaks, and the node is lost."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from qemuworld import BROKEN, FETCHED, FETCHES, LACKS, RUNS, World, driver, place, world

import waiting
from wherry.base.errors import Code, Failed
from wherry.model.migration_parameters import MigrationParameters
from wherry.node.vm import live_migration
from wherry.node.vm.real.qemu import QemuDriver, QemuMover

__all__ = ["driver", "world"]  # fixtures


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
