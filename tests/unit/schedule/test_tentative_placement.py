"""A placement that is tried move by move, and how long a node that is moved over a link is frozen."""

from __future__ import annotations

import pytest

from wherry.model.records import Host, Node, NodeState, Prediction
from wherry.model.spec.fabric import LinkSpec
from wherry.schedule.cost import downtime
from wherry.schedule.placement import used_by
from wherry.schedule.routes import SHARE, Routes
from wherry.schedule.step_model import World
from wherry.schedule.tentative_placement import TentativePlacement

GIB = 2**30
ROADS = Routes([LinkSpec.model_validate({"between": ("a", "b"), "latency": "10ms", "bandwidth": "80Mbit/s"})])


def host(name: str, cores: float = 4) -> Host:
    return Host(name=name, site=name[0], cores=cores, memory=4 * GIB)


def node(number: int, where: str, cpus: float = 1) -> Node:
    return Node(
        name=f"c-{number}", cluster="c", index=number, host=where, address="", mac="", cpus=cpus, memory=GIB,
        state=NodeState.RUNNING,
    )  # fmt: skip


def trial(*nodes: Node, most: int | None = None) -> TentativePlacement:
    hosts = {name: host(name, 3) for name in ("a1", "a2", "b1")}
    return TentativePlacement(nodes, World(hosts, ROADS, {}, {}), used_by(nodes), most=most)


def test_a_move_takes_its_cpus_along() -> None:
    """Of a host with 3 cores, 2 + 2 CPUs get three quarters each, and 2 alone get all that they ask for."""
    first, second, third = nodes = node(0, "a1", 2), node(1, "a1", 2), node(2, "a2", 2)
    tried = trial(*nodes)
    assert tried.cpu_share(first, "a1") == 0.75 and tried.cpu_share(third, "a2") == 1
    tried.move(first, "a2")
    assert tried.where == {"c-0": "a2", "c-1": "a1", "c-2": "a2"}
    assert tried.cpu_share(second, "a1") == 1 and tried.cpu_share(third, "a2") == tried.cpu_share(first, "a2") == 0.75
    tried.move(third, "b1")
    assert tried.cpu_share(first, "a2") == 1 and tried.cpu_share(third, "b1") == 1


def test_a_host_that_is_left_counts_as_taken() -> None:
    """Both by the room of its nodes, until the move is done, and by how many of them it may have."""
    first, second = nodes = node(0, "a1", 3), node(1, "a2", 1)
    tried = trial(*nodes)
    assert not tried.fits(second, "a1") and tried.fits(second, "b1")
    tried.move(first, "b1")
    assert not tried.fits(second, "a1"), "the copy there goes when the move is over"
    assert not tried.fits(second, "b1")
    nodes = node(0, "a1"), node(1, "a2"), node(2, "a2")
    tried = trial(*nodes, most=2)
    assert tried.fits(nodes[1], "a1") and not tried.fits(nodes[0], "a2")
    tried.move(nodes[1], "a1")
    assert not tried.fits(nodes[2], "a1")


def test_several_nodes_come_and_go() -> None:
    """Of a host with 3 cores; nodes that leave and nodes that arrive are counted one by one."""
    nodes = node(0, "a1", 2), node(1, "a1", 1), node(2, "a2", 1), node(3, "b1", 1)
    tried = trial(*nodes, most=4)
    tried.move(nodes[0], "a2")
    assert tried.cpu_share(node(1, "a1", 1), "a1") == 1 and tried.cpu_share(nodes[2], "a2") == 1
    assert not tried.fits(nodes[3], "a2"), "3 CPUs are taken"
    three = node(0, "a1", 1), node(1, "a1", 2), node(2, "a1", 2)
    tried = trial(*three)
    tried.move(three[0], "a2")
    assert tried.cpu_share(three[1], "a1") == 0.75, "4 CPUs of 3 cores are left"
    small = node(0, "a1", 1), node(1, "a1", 0.5), node(2, "b1", 1.5), node(3, "b1", 1)
    tried = trial(*small)
    tried.move(small[0], "a2")
    tried.move(small[1], "a2")
    assert tried.fits(small[2], "a2") and not tried.fits(node(2, "b1", 1.6), "a2")
    tried = trial(node(0, "a1"), node(1, "b1"), most=2)
    tried.move(node(1, "b1"), "a2")
    assert tried.fits(node(0, "a1"), "a2"), "one is there, and two may be"
    assert not tried.copy().with_nodes([node(0, "a1")], {"c-0": "a2"}).fits(node(2, "a1"), "a2")


def test_a_copy_goes_its_own_way() -> None:
    nodes = node(0, "a1", 2), node(1, "a1", 2)
    tried = trial(*nodes)
    other = tried.with_nodes(nodes, {"c-0": "a2", "c-1": "a1"})
    assert other.where["c-0"] == "a2" and other.cpu_share(nodes[1], "a1") == 1
    assert tried.where["c-0"] == "a1" and tried.cpu_share(nodes[1], "a1") == 0.75


@pytest.mark.parametrize(("rounds", "frozen"), [(0, 11e6), (3, 1e6)])
def test_how_long_a_node_is_frozen(rounds: int, frozen: float) -> None:
    """Its downtime within a site; over a link ten more round trips, and the bytes sent while it is frozen."""
    predicted = Prediction(
        bytes=11_000_000, rounds=rounds, seconds=2, downtime=0.25, basis="", frozen=1_000_000 if rounds else None
    )
    assert downtime(predicted, host("a1"), host("a2"), ROADS) == 0.25
    expected = 0.25 + 10 * 2 * 0.01 + frozen / 10e6 / SHARE
    assert downtime(predicted, host("a1"), host("b1"), ROADS) == pytest.approx(expected)
