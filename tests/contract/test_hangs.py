"""Moves of a container in which a program hangs or dies, or which are cancelled: the node is frozen only briefly. Hangs
are made by SIGSTOP. The bounds hold on a loaded machine and are a fraction of the time limit of a whole step (36 s for
such a node)."""

from __future__ import annotations

import os
import re
import select
import signal
import threading
import time
from collections.abc import Iterator

import pytest
from contract_names import INSTANCE
from test_node import NodeUnderTest, movable_node

import waiting
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
def standing(nodes: tuple[NodeDriver, Fabric]) -> Iterator[NodeUnderTest]:
    """A running container."""
    with movable_node(*nodes) as node_under_test:
        yield node_under_test


def mover_of(node_under_test: NodeUnderTest) -> ContainerMover:
    mover = node_under_test.mover()
    assert isinstance(mover, ContainerMover)
    return mover


def processes(mover: ContainerMover) -> dict[str, int]:
    """PIDs of the programs of a prepared move."""
    departure, arrival = mover._departure, mover._arrival
    assert isinstance(departure, LocalDeparture) and isinstance(arrival, LocalArrival)
    assert departure._comparison and arrival._sums and arrival._engine and arrival._engine.worker
    pages = {"send": departure._memory.pid} if departure._memory else {}
    pages |= {"receive": arrival._memory.pid} if arrival._memory else {}
    pages |= {"tree send": departure._files[0].pid} if departure._files else {}
    pages |= {"tree": arrival._files[0].pid} if arrival._files else {}
    return {
        **pages,
        "restore": arrival._engine.worker._process.pid,
        "digest": arrival._sums.pid,
        "compare": departure._comparison.pid,
        **{str(channel): receiver.pid for channel, receiver in arrival._receivers.items()},
    }


@pytest.mark.parametrize(
    ("nodes", "what"),
    [
        *(("container", what) for what in ("send", "receive", "tree send", "tree", "images", "digest")),
        *(("container", what) for what in ("restore", "compare")),
        ("unpaged", "pages"),
        ("unpaged", "restore"),
    ],
    indirect=["nodes"],
)
def test_hung_program_times_out(standing: NodeUnderTest, what: str) -> None:
    mover = mover_of(standing)
    prepare, *steps = standing.steps(mover)
    prepare()
    os.kill(processes(mover)[what], signal.SIGSTOP)
    with waiting.no_hang():
        with pytest.raises(Failed, match="stalled") as error_info:
            for step in steps:
                step()
        assert error_info.value.code == Code.TIMED_OUT
        assert what != "restore" or re.search(r" \d+ T \d+\.\d s", error_info.value.why), "its state is in the error"
        standing.roll_back(mover)
    standing.assert_runs_only_at(standing.source)
    assert not engine_processes(standing)


@CONTAINER
def test_the_destination_sees_the_end_of_a_sender_that_was_killed(standing: NodeUnderTest) -> None:
    """The node is frozen, so nothing waits until the destination finds that nothing comes."""
    mover = mover_of(standing)
    *before, transfer, _ = standing.steps(mover)
    for step in before:
        step()
    found = processes(mover)
    receiver = os.pidfd_open(found["receive"])
    try:
        os.kill(found["send"], signal.SIGKILL)
        with pytest.raises(Failed, match="SIGKILL"):
            transfer()
        waiting.until(lambda: bool(select.select([receiver], [], [], 0)[0]), "the receiver's end")
    finally:
        os.close(receiver)
        standing.roll_back(mover)
    standing.assert_runs_only_at(standing.source)


def engine_processes(node_under_test: NodeUnderTest) -> list[int]:
    destination = node_under_test.destination
    return LocalHosts(INSTANCE, node_under_test.fabric).of(destination.host).engine_group(destination).pids()


@CONTAINER
def test_killed_restore_is_rolled_back_at_once(standing: NodeUnderTest) -> None:
    """Children of CRIU keep its end of the socket open and would wait for it forever."""
    mover = mover_of(standing)
    *before, restore = standing.steps(mover)
    for step in before:
        step()
    criu = processes(mover)["restore"]
    struck = threading.Event()

    def kill() -> None:
        while True:
            if len(pids := engine_processes(standing)) > 1:
                for pid in pids:  # its children stay stopped, like a child that waits for its parent
                    os.kill(pid, signal.SIGKILL if pid == criu else signal.SIGSTOP)
                struck.set()
                return

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    with waiting.no_hang():
        with pytest.raises(Failed, match="could not restore"):
            restore()
        assert struck.wait(waiting.bound())
        standing.roll_back(mover)
    assert not engine_processes(standing)
    standing.assert_runs_only_at(standing.source)


@CONTAINER
def test_restore_is_cancelled_while_criu_runs(standing: NodeUnderTest) -> None:
    mover = mover_of(standing)
    *before, _ = standing.steps(mover)
    for step in before:
        step()
    os.kill(processes(mover)["restore"], signal.SIGSTOP)
    polls: list[float] = []

    def cancelled(_text: str) -> None:
        polls.append(time.monotonic())
        if len(polls) > 3:
            raise Failed(Code.CANCELLED, "it was cancelled")

    with pytest.raises(Failed, match="it was cancelled"):
        mover.restore(cancelled)
    standing.roll_back(mover)
    standing.assert_runs_only_at(standing.source)
