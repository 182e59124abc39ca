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

from wherry.base.errors import Code, Failed
from wherry.fabric.protocol import Fabric
from wherry.node.container.driver import ContainerDriver
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
    assert mover._verification
    return {
        "restore": mover._engine.workers["restore"]._process.pid,
        "list": mover._verification._list.pid,
        "compare": mover._verification._compare.pid,
        **{name: stream._receiver.pid for name, stream in mover._transport.streams.items()},
    }


@CONTAINER
@pytest.mark.parametrize("what", ["pages", "tree", "images", "list", "restore", "compare"])
def test_hung_program_times_out(standing: Stand, what: str) -> None:
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
    assert isinstance(stand.driver, ContainerDriver)
    return stand.driver.engine_group(stand.there).pids()


@CONTAINER
def test_killed_restore_is_rolled_back_at_once(standing: Stand) -> None:
    """What CRIU had forked holds its end of the socket, and waits for it for ever."""
    mover = mover_of(standing)
    *before, restore = standing.steps(mover)
    for step in before:
        step()
    criu = mover._engine.workers["restore"]._process.pid
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
def test_restore_is_cancelled_while_criu_runs(standing: Stand) -> None:
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
