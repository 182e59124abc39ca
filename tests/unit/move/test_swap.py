"""Swaps of nodes in memory: where the nodes are when a move fails, its error, and the free memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fakeworld import World, fabric_spec

from wherry.base.errors import Code, Failed, Refused
from wherry.base.progress import never, quiet
from wherry.fabric.host_counters import HostUse, NodeUse
from wherry.model.records import Gain, Node
from wherry.move import state_machine
from wherry.move.swap import Swaps

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_machine, "_PAUSE", 0.0)


def swaps_of(world: World) -> Swaps:
    return Swaps(world.store, world.fabric, world.moves)


def failed(world: World, strike: Callable[[str, int], None]) -> Failed:
    """The error of a swap of hello-0 (a1) and hello-2 (b1), one after the other; `strike` is called with the name of
    each step and the number of moves that have begun."""
    swaps, begun = swaps_of(world), list[str]()

    def watch(name: str) -> None:
        if name == "put_move prepare":
            begun.append(name)
        strike(name, len(begun))

    plan = replace(swaps.plan("hello-0", "hello-2"), together=False)
    world.watch(watch)
    with pytest.raises(Failed) as caught:
        swaps.apply(plan, quiet, never)
    world.watch(None)
    return caught.value


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path, rounds=True)
    world.make()
    return world


def host_of(world: World, name: str) -> str:
    node = world.store.node(name)
    assert node
    return node.host


def test_a_first_move_that_is_committed_and_not_finished_is_no_move_that_failed(world: World) -> None:
    def strike(name: str, _moves: int) -> None:
        if name == "thaw":
            raise Failed(Code.FAILED, "struck")

    error = failed(world, strike)
    assert error.code is Code.PARTLY_DONE and "swapped in half" in error.what
    assert "hello-0 is on b1 now, where hello-2 is too" in error.why and error.next == "wherry move hello-2 --to a1"
    assert host_of(world, "hello-0") == host_of(world, "hello-2") == "b1"
    world.reborn()
    world.moves.recover()
    world.moves.run("hello-2", "a1")
    world.assert_one_copy("hello-0", "b1")
    world.assert_one_copy("hello-2", "a1")


def test_a_second_move_that_is_committed_and_not_finished_takes_nothing_back(world: World) -> None:
    def strike(name: str, moves: int) -> None:
        if name == "thaw" and moves == 2:
            raise Failed(Code.FAILED, "struck")

    error = failed(world, strike)
    assert error.code is Code.PARTLY_DONE and "changed places, and a move is not finished" in error.what
    world.reborn()
    world.moves.recover()
    world.assert_one_copy("hello-0", "b1")
    world.assert_one_copy("hello-2", "a1")


def test_whatever_the_second_move_raises_the_first_is_taken_back(world: World) -> None:
    def strike(name: str, moves: int) -> None:
        if name == "put_move prepare" and moves == 2:
            raise RuntimeError("no thread")

    error = failed(world, strike)
    assert "no thread" in error.why and "hello-0 was moved back to a1" in error.why
    world.assert_one_copy("hello-0", "a1")
    world.assert_one_copy("hello-2", "b1")


def test_a_first_move_that_fails_leaves_both(world: World) -> None:
    def strike(name: str, _moves: int) -> None:
        if name == "transfer":
            raise Failed(Code.FAILED, "struck")

    assert "both are where they were" in failed(world, strike).why
    world.assert_one_copy("hello-0", "a1")


def test_only_the_cluster_that_gains_has_the_gain(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.make("one", 1, hosts=("a1",))
    world.make("two", 1, hosts=("b1",))
    gain = Gain(before=9, after=3)
    plan = swaps_of(world).plan("one-0", "two-0", gain, "two")
    assert {part.node.name: part.gain for part in (plan.first, plan.second)} == {"one-0": None, "two-0": gain}


@pytest.mark.parametrize(("used", "fits"), [(100, True), (450, False)])
def test_other_nodes_count_with_what_they_declare(tmp_path: Path, used: int, fits: bool) -> None:
    """On each host are two nodes of 512 MiB, which is all of it; the nodes that stay use little yet."""
    world = World(tmp_path, fabric_spec(memory="1GiB"))
    for name in ("one", "two"):
        world.make(name)

    def known(name: str) -> Node:
        node = world.store.node(name)
        assert node
        return node

    pair = known("one-0"), known("one-1")
    with pytest.raises(Refused, match="really free memory is not known"):
        swaps_of(world).check_room(*pair)
    for node in pair:
        one = NodeUse(memory=used * MIB, processes=1)
        world.fabric.used[node.host] = HostUse(memory=(used + 10) * MIB, memory_limit=None, nodes={node.name: one})
    if fits:
        assert swaps_of(world).check_room(*pair) == ("", "")
    else:
        with pytest.raises(Refused, match="62.0 MiB of memory free"):
            swaps_of(world).check_room(*pair)
