"""Post-copy of containers that are active all the time: a fault before the commit rolls the move back; a fault while
memory is still at the source ends the node, which is reported, and nothing of it is left. It never runs with a wrong
page: its programs check all that they have, up to the move's very end."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from engine_node import TELLING, EngineNode, Mode, engine_node
from test_engine_faults import guard_of, processes, strike
from test_engine_matrix import programs as programs  # noqa: PLC0414 - a fixture

import waiting
from wherry.base.errors import Failed
from wherry.fabric.cgroup import Cgroup
from wherry.fabric.protocol import Fabric
from wherry.model.migration_parameters import MigrationParameters
from wherry.node.container.mover import ContainerMover
from wherry.node.protocol import NodeDriver

pytestmark = [
    pytest.mark.skipif(not shutil.which("gcc"), reason="there is no compiler for the programs"),
    pytest.mark.parametrize("nodes", ["container"], indirect=True, scope="module"),
]
LATER = Mode(rounds=0, parameters=MigrationParameters.model_validate({"mode": "post-copy", "deadline": "2s"}))
"""All memory comes after the thaw."""


@pytest.fixture
def node(nodes: tuple[NodeDriver, Fabric], programs: tuple[Path, Path]) -> Iterator[EngineNode]:  # noqa: F811
    with engine_node(*nodes, *programs) as made:
        made.begin(*TELLING)
        try:
            yield made
        finally:
            if made.node_under_test.hold:
                made.node_under_test.hold.drop()


def committed(node: EngineNode) -> tuple[ContainerMover, int, int]:
    """A move behind its commit: the mover, the sender, which is stopped, and the receiver."""
    under_test = node.node_under_test
    mover = under_test.mover(LATER.parameters)
    assert isinstance(mover, ContainerMover)
    for step in under_test.steps(mover, post_copy=True):
        step()
    assert not mover.problem()
    found = processes(mover)
    os.kill(found["send"], signal.SIGSTOP)
    return mover, found["send"], found["receive"]


def kill_sender(_node: EngineNode, sender: int, _receiver: int) -> None:
    os.kill(sender, signal.SIGKILL)


def kill_receiver(_node: EngineNode, _sender: int, receiver: int) -> None:
    os.kill(receiver, signal.SIGKILL)


def stop_all(_node: EngineNode, _sender: int, _receiver: int) -> None:
    """The sender is stopped already."""


def cut_link(node: EngineNode, sender: int, _receiver: int) -> None:
    node.link(node.node_under_test.destination.host, "down")
    os.kill(sender, signal.SIGCONT)


def kill_source(node: EngineNode, sender: int, _receiver: int) -> None:
    Cgroup(node.node_under_test.source.cgroup).kill()
    os.kill(sender, signal.SIGCONT)


def replay(node: EngineNode, sender: int, receiver: int) -> None:
    """Its guard first: another one is made."""
    guard = guard_of(receiver)
    os.kill(guard, signal.SIGKILL)
    waiting.until(lambda: guard_of(receiver) not in (0, guard), "another guard")
    kill_sender(node, sender, receiver)


BREAKS: dict[str, tuple[Callable[[EngineNode, int, int], None], str, float]] = {
    "sender killed": (kill_sender, "closed|reset", 0.0),
    "sender stopped": (stop_all, "have not come", 2.0),
    "receiver killed": (kill_receiver, "SIGKILL|guard", 0.0),
    "link cut": (cut_link, "have not come", 2.0),
    "source killed": (kill_source, "closed|reset", 0.0),
    "guard and sender killed": (replay, "closed|reset", 0.0),
}


@pytest.mark.parametrize("what", BREAKS)
def test_a_node_that_still_needs_its_source_is_lost_with_it(node: EngineNode, what: str) -> None:
    act, why, least = BREAKS[what]
    under_test = node.node_under_test
    mover, sender, receiver = committed(node)
    mover.release()
    assert under_test.driver.alive(under_test.source), "it is needed"
    act(node, sender, receiver)
    began = time.monotonic()
    with waiting.no_hang(), pytest.raises(Failed, match="ended before it had all its memory") as caught:
        under_test.finish(mover)
    assert time.monotonic() - began > least - 0.5
    assert any(word in caught.value.why for word in why.split("|")), caught.value.why
    assert not under_test.driver.alive(under_test.destination)
    node.mend()
    under_test.driver.stop(under_test.source)
    under_test.driver.stop(under_test.destination)
    with suppress(Failed):
        mover.close()
    node.assert_one_copy(None)


def test_a_retired_copy_is_never_thawed(node: EngineNode) -> None:
    mover, sender, _ = committed(node)
    mover.release()
    with pytest.raises(Failed, match="is retired"):
        mover._departure.resume()
    assert Cgroup(node.node_under_test.source.cgroup).frozen()
    os.kill(sender, signal.SIGCONT)
    node.node_under_test.finish(mover)
    node.await_laps(*TELLING)


def test_the_next_mover_waits_for_what_is_still_at_the_source(node: EngineNode) -> None:
    """As after the death of a daemon: the first mover's pipes are closed."""
    under_test = node.node_under_test
    first, sender, _ = committed(node)
    for program in (first._departure._memory, first._arrival._memory):  # type: ignore[attr-defined]
        program._process.stdin.close()
    assert under_test.hold
    under_test.hold.drop()
    under_test.hold = None
    mover = under_test.mover()
    mover.release()
    mover.thaw()
    assert under_test.driver.alive(under_test.source) and Cgroup(under_test.source.cgroup).frozen()
    os.kill(sender, signal.SIGCONT)
    under_test.finish(mover)
    under_test.source, under_test.destination = under_test.destination, under_test.source
    node.assert_one_copy(under_test.source)
    node.await_laps(*TELLING)
    first._departure._memory._process.wait()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("what", "when"),
    [
        *((what, when) for what in ("send", "receive", "restore") for when in ("freeze", "transfer", "restore")),
        *(("link cut", when) for when in ("freeze", "transfer")),  # later it is BREAKS's
    ],
)
def test_before_the_commit_it_is_taken_back(node: EngineNode, what: str, when: str) -> None:
    def break_it(step: str, mover: ContainerMover) -> None:
        if step == when:
            strike(node, what, mover)

    before = node.host
    why = node.attempt(LATER, break_it)
    assert (node.host == before) == bool(why)
    node.mend()
    node.await_laps(*TELLING)


def test_it_tells_what_came_later(node: EngineNode) -> None:
    under_test = node.node_under_test
    mover, sender, _ = committed(node)
    os.kill(sender, signal.SIGCONT)
    mover.release()
    assert under_test.hold
    under_test.hold.release()
    mover.thaw()
    fetched = mover.complete()
    assert fetched and fetched.background > 1 << 20 and fetched.demanded > 0 and fetched.seconds < 10
    assert mover.complete() is None or mover.complete() == fetched
    under_test.fabric.port_down(under_test.port(under_test.source))
    mover.close()
    node.await_laps(*TELLING)
