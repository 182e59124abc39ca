"""Names that a user gives: found, or refused with the nearest; and nodes that ended by themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fakeworld import World

from wherry.base.errors import Code, Refused
from wherry.cluster.lookup import find_cluster, find_host, find_job, find_node, known_hosts, not_found
from wherry.model.records import ClusterState, Job, JobState, NodeState


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.make("hello", 2)
    return world


@pytest.mark.parametrize(
    ("known", "why"),
    [
        (["hello-10", "hello-1"], "did you mean hello-1?"),
        ([f"n{number}" for number in range(9, -1, -1)], "known: n0, n1, n2, n3, n4, n5, n6, n7"),
        ([], "there is no node"),
    ],
)
def test_an_unknown_name(known: list[str], why: str) -> None:
    error = not_found("node", "helo-1", known)
    assert (error.code, error.what, error.why) == (Code.NOT_FOUND, "no node is named 'helo-1'", why)
    assert error.next == "wherry status"


def test_what_is_there_is_found(world: World) -> None:
    assert find_node(world.store, "hello-1").name == "hello-1"
    assert find_cluster(world.store, "hello").name == "hello"
    assert find_host(known_hosts(world.store, world.fabric), "b1").name == "b1"
    for id in ("j1", "j2"):
        fields = {"id": id, "cluster": "hello", "argv": ("x",), "ranks": 1, "mpi": "openmpi", "uid": 1, "gid": 1}
        world.store.put_job(Job.model_validate({**fields, "cwd": "/", "created": 0, "state": JobState.RUNNING}))
    assert find_job(world.store, "j2").id == "j2"


@pytest.mark.parametrize(
    ("find", "what", "why"),
    [
        (lambda w: find_node(w.store, "hello-7"), "no node is named 'hello-7'", "did you mean hello-1?"),
        (lambda w: find_cluster(w.store, "hallo"), "no cluster is named 'hallo'", "did you mean hello?"),
        (lambda w: find_host(known_hosts(w.store, w.fabric), "c"), "no host is named 'c'", "known: a1, a2, b1, b2"),
        (lambda w: find_job(w.store, "j7"), "there is no job 'j7'", ""),
    ],
    ids=["node", "cluster", "host", "job"],
)
def test_what_is_not_there_is_refused(world: World, find: Callable[[World], object], what: str, why: str) -> None:
    with pytest.raises(Refused) as refused:
        find(world)
    assert refused.value.next == ("wherry job list" if "job" in what else "wherry status")
    assert (refused.value.code, refused.value.what, refused.value.why) == (Code.NOT_FOUND, what, why)


def test_a_lost_node_is_told_with_its_last_words(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes that are there, or were moved since the look, stay; the cluster has the reason why it is partly there."""
    consoles = [tmp_path / str(number) for number in range(3)]
    for console in consoles:
        console.write_text("something else\n")
    consoles[-1].write_text("Kernel panic - not syncing\n")
    monkeypatch.setattr(
        type(world.driver), "console_files", lambda _driver, name: consoles if name == "hello-0" else []
    )
    lost, moved = (node for node in world.store.nodes("hello"))
    world.store.put_node(moved.model_copy(update={"host": "b2"}))
    (marked,) = world.clusters.lose("hello", [lost, moved])
    told = "its last output: Kernel panic - not syncing (wherry logs --node hello-0)"
    assert (marked.name, marked.state) == ("hello-0", NodeState.LOST) and world.store.node("hello-0") == marked
    (event,) = [event for event in world.store.events() if event.kind == "node.lost"]
    assert (event.target, event.text) == ("hello-0", f"hello-0 on {lost.host} ended by itself; {told}")
    cluster = find_cluster(world.store, "hello")
    assert (cluster.state, cluster.reason) == (ClusterState.PARTLY, f"hello-0 is lost; {told}")
    assert find_node(world.store, "hello-1").state == NodeState.RUNNING
    assert world.clusters.lose("hello", []) == []


def test_a_lost_node_without_a_console(world: World) -> None:
    """Only nodes of the cluster that is looked at; a cluster that is being removed stays so."""
    world.make("other", 1)
    other = find_node(world.store, "other-0")
    world.store.put_node(other.model_copy(update={"state": NodeState.LOST}))
    assert world.clusters.lose("hello", []) == [] and find_cluster(world.store, "hello").state == ClusterState.RUNNING
    world.store.put_node(other)
    world.driver.placements.clear()
    gone = world.clusters.gone("hello")
    assert [node.name for node in gone] == ["hello-0", "hello-1"]
    assert [node.name for node in world.clusters.lose("hello", gone[:1])] == ["hello-0"]
    assert find_cluster(world.store, "hello").reason == "hello-0 is lost"
    removed = find_cluster(world.store, "other").model_copy(update={"state": ClusterState.REMOVING})
    world.store.put_cluster(removed)
    assert world.clusters.lose("other", []) == [] and find_cluster(world.store, "other") == removed
    assert len(world.clusters.lose("other", [other])) == 1 and find_cluster(world.store, "other") == removed
