"""A container's move in which something hangs, dies or is cancelled on purpose: the node stands for a moment only.

What hangs is stopped by SIGSTOP, which no program notices. The limits are those of a loaded machine, and a fraction of
what a hang cost when only the whole time of a step was bounded (36 s for such a node).
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest
from test_node import Stand

from conftest import INSTANCE
from wherry.base.errors import Code, Failed
from wherry.fabric.protocol import Fabric
from wherry.node.container.local_arrival import LocalArrival
from wherry.node.container.local_departure import LocalDeparture
from wherry.node.container.local_host import LocalHosts
from wherry.node.container.mover import ContainerMover
from wherry.node.protocol import NodeDriver

SOON = 12.0
CONTAINER = pytest.mark.parametrize("nodes", ["container"], indirect=True)


@pytest.fixture
def standing(nodes: tuple[NodeDriver, Fabric]) -> Iterator[Stand]:
    """A container that runs."""
    stand = Stand(*nodes)
    try:
        stand.driver.start(stand.here)
        if reason := stand.driver.move_obstacle(stand.here, stand.there):
            pytest.skip(reason)
        yield stand
    finally:
        stand.remove()


def mover_of(stand: Stand) -> ContainerMover:
    mover = stand.mover()
    assert isinstance(mover, ContainerMover)
    return mover


def processes(mover: ContainerMover) -> dict[str, int]:
    """The programs of a move that is prepared."""
    departure, arrival = mover._departure, mover._arrival
    assert isinstance(departure, LocalDeparture) and isinstance(arrival, LocalArrival)
    assert departure._comparison and arrival._sums and arrival._engine and arrival._engine.worker
    return {
        "restore": arrival._engine.worker._process.pid,
        "digest": arrival._sums.pid,
        "compare": departure._comparison.pid,
        **{str(channel): receiver.pid for channel, receiver in arrival._receivers.items()},
    }


@CONTAINER
@pytest.mark.parametrize("what", ["pages", "tree", "images", "digest", "restore", "compare"])
def test_a_program_that_hangs_is_given_up(standing: Stand, what: str) -> None:
    mover = mover_of(standing)
    prepare, *steps = standing.steps(mover)
    prepare()
    os.kill(processes(mover)[what], signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(Failed, match="stalled") as told:
        for step in steps:
            step()
    assert told.value.code == Code.TIMED_OUT
    standing.take_back(mover)
    assert time.monotonic() - began < SOON
    standing.assert_runs_at(standing.here)
    assert not engine_processes(standing)


def engine_processes(stand: Stand) -> list[int]:
    return LocalHosts(INSTANCE, stand.fabric).of(stand.there.host).engine_group(stand.there).pids()


@CONTAINER
def test_a_restore_whose_criu_is_killed_is_taken_back_at_once(standing: Stand) -> None:
    """What CRIU had forked holds its end of the socket, and waits for it for ever."""
    mover = mover_of(standing)
    *before, restore = standing.steps(mover)
    for step in before:
        step()
    criu = processes(mover)["restore"]
    struck = threading.Event()

    def kill() -> None:
        while True:
            if len(pids := engine_processes(standing)) > 1:
                for pid in pids:  # those it forked stay as they are, like a child that waits for its parent
                    os.kill(pid, signal.SIGKILL if pid == criu else signal.SIGSTOP)
                struck.set()
                return

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    began = time.monotonic()
    with pytest.raises(Failed, match="could not restore"):
        restore()
    assert struck.wait(10)
    standing.take_back(mover)
    assert time.monotonic() - began < SOON
    assert not engine_processes(standing)
    standing.assert_runs_at(standing.here)


@CONTAINER
def test_a_restore_is_cancelled_while_criu_is_at_it(standing: Stand) -> None:
    mover = mover_of(standing)
    *before, _ = standing.steps(mover)
    for step in before:
        step()
    os.kill(processes(mover)["restore"], signal.SIGSTOP)
    asked: list[float] = []

    def cancelled(_text: str) -> None:
        asked.append(time.monotonic())
        if len(asked) > 3:
            raise Failed(Code.CANCELLED, "it was cancelled")

    with pytest.raises(Failed, match="it was cancelled"):
        mover.restore(cancelled)
    standing.take_back(mover)
    standing.assert_runs_at(standing.here)
