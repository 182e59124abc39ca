"""Post-copy in the state machine of a move: the source's copy is retired at the commit, and killed when the node has
all its memory; a node that ends before is lost. Kills and failures at each step: test_state_machine.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakeworld import Killed, World
from test_state_machine import BY_POST_COPY, DESTINATION, NODE, SOURCE, assert_settled, last_move, world_of

from wherry.base.errors import Code, Failed, Refused
from wherry.model.records import NodeState
from wherry.node.fake import Copy


@pytest.fixture
def world(tmp_path: Path) -> World:
    return world_of(tmp_path, "memory is fetched")[0]


def test_the_copy_that_is_needed_is_retired_before_the_other_runs(world: World) -> None:
    copies = dict[str, dict[str, Copy]]()
    world.watch(lambda name: copies.setdefault(name, world.driver.copies(NODE)))
    move = world.moves.run(NODE, DESTINATION, BY_POST_COPY)
    assert copies["thaw"] == {SOURCE: Copy.RETIRED, DESTINATION: Copy.FROZEN}
    assert copies["complete"] == {SOURCE: Copy.RETIRED, DESTINATION: Copy.RUNNING}
    assert_settled(world)
    assert move.fetched is not None and move.fetched == last_move(world).fetched
    assert move.bytes >= move.fetched.bytes + sum(round.bytes for round in move.rounds)
    assert any("after the thaw" in event.text for event in world.store.events() if event.kind == "move.done")


def test_it_cannot_be_moved_again_until_all_memory_is_there(world: World) -> None:
    refused = list[Code]()

    def again(name: str) -> None:
        if name == "complete":
            with pytest.raises(Refused) as caught:
                world.moves.run(NODE, "b2", BY_POST_COPY)
            refused.append(caught.value.code)

    world.watch(again)
    world.moves.run(NODE, DESTINATION, BY_POST_COPY)
    assert refused == [Code.WRONG_STATE]


def test_the_next_daemon_does_not_kill_what_is_still_needed(world: World) -> None:
    def strike(name: str) -> None:
        if name == "complete":
            raise Killed

    world.watch(strike)
    with pytest.raises(Killed):
        world.moves.run(NODE, DESTINATION, BY_POST_COPY)
    world.reborn()
    seen = list[dict[str, Copy]]()
    world.watch(lambda name: seen.append(world.driver.copies(NODE)) if name == "complete" else None)
    world.moves.recover()
    assert seen == [{SOURCE: Copy.RETIRED, DESTINATION: Copy.RUNNING}]
    assert_settled(world)


def test_a_node_whose_memory_does_not_come_is_lost(world: World) -> None:
    def strike(name: str) -> None:
        if name == "complete":
            world.driver.placements.pop((NODE, DESTINATION), None)

    world.watch(strike)
    with pytest.raises(Failed) as caught:
        world.moves.run(NODE, DESTINATION, BY_POST_COPY)
    assert "ended while it was moved" in caught.value.what and "all its memory" in caught.value.why
    assert (world.store.node(NODE).state, world.driver.copies(NODE)) == (NodeState.LOST, {})
    assert not world.store.moves(unfinished=True)


@pytest.mark.parametrize("phase", ["freeze", "transfer", "restore"])
def test_before_the_commit_it_goes_back(world: World, phase: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERRY_FAULTS", "1")
    with pytest.raises(Failed, match="runs on b1 as before"):
        world.moves.run(NODE, DESTINATION, BY_POST_COPY, fault=f"{phase}:fail")
    assert_settled(world)


def test_it_is_never_chosen_by_itself(world: World) -> None:
    called = list[str]()
    world.watch(called.append)
    assert world.moves.run(NODE, DESTINATION).fetched is None
    assert "switch" not in called
