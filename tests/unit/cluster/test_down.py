"""Removing a cluster: not under a move of its own, and a removal in part is reported and can be tried again."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakeworld import World

from wherry.base.errors import Code, Failed, Refused
from wherry.cluster.lookup import find_cluster
from wherry.model.records import ClusterState, Move, Phase


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.make("hello", 2)
    return world


def moving(cluster: str) -> Move:
    return Move(
        id="m7", node=f"{cluster}-0", cluster=cluster, source="a1", destination="a2", phase=Phase.RESTORE, created=0
    )  # fmt: skip


def test_not_under_a_move_of_its_own(world: World) -> None:
    """It is as it was then; a move of another cluster does not matter."""
    before = find_cluster(world.store, "hello")
    world.store.put_move(moving("hello"))
    with pytest.raises(Refused) as refused:
        world.clusters.down("hello")
    error = refused.value
    assert (error.code, error.what) == (Code.WRONG_STATE, "the move of hello-0 from a1 to a2 is unfinished")
    assert error.why == "move m7 is in phase restore"
    assert error.next == "wherry status"
    assert find_cluster(world.store, "hello") == before and len(world.store.nodes("hello")) == 2
    world.store.put_move(moving("hello").model_copy(update={"cluster": "other", "node": "other-0"}))
    world.clusters.down("hello")
    assert world.store.cluster("hello") is None and world.store.nodes("hello") == []
    (event,) = [event for event in world.store.events() if event.kind == "cluster.down"]
    assert (event.target, event.text) == ("hello", "hello is removed")


def test_the_row_says_that_it_is_removed_before_anything_is(world: World) -> None:
    """And that a move which has ended is no reason to refuse."""
    world.store.put_move(moving("hello").model_copy(update={"phase": Phase.DONE, "ended": 1.0}))
    world.store.put_cluster(find_cluster(world.store, "hello").model_copy(update={"reason": "of before"}))
    seen = set[tuple[str, str]]()

    def look(_call: str) -> None:
        if row := world.store.cluster("hello"):
            seen.add((row.state, row.reason))

    world.watch(look)
    world.clusters.down("hello")
    assert seen == {(ClusterState.REMOVING, "")}


def test_what_stays_is_told_and_tried_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:

        def fail(*_: object) -> None:
            raise Failed(Code.FAILED, "the bridge is busy", "")

        broken.setattr(world.fabric, "network_down", fail)
        with pytest.raises(Failed) as failed:
            world.clusters.down("hello")
    error, row = failed.value, find_cluster(world.store, "hello")
    assert (error.code, error.what) == (Code.PARTLY_DONE, "cluster hello is removed in part")
    assert error.why == "its network: the bridge is busy" and error.next == "wherry down hello"
    assert (row.state, row.reason) == (ClusterState.REMOVING, error.why)
    world.clusters.down("hello")
    assert world.store.cluster("hello") is None
