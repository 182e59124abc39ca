"""The order of clusters that wait, and backfill: none that starts delays one before it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from properties import examples
from wherry.model.records import Host, Node
from wherry.model.spec.cluster import PlacementSpec
from wherry.schedule.placement import NodeNeed
from wherry.schedule.queue import Verdict, Wanted, can_ever_start, decide, in_order

HOSTS = [Host(name=name, site=name[0], cores=4, memory=100) for name in ("a1", "a2")]
NOW = 1000.0


def wanted(key: str, nodes: int = 1, cpus: float = 4, **more: Any) -> Wanted:
    needs = (NodeNeed(cpus, 10),) * nodes
    return Wanted(**{"key": key, "uid": 7, "priority": 0, "needs": needs, "placement": PlacementSpec()} | more)


def node(cluster: str, host: str, cpus: float = 4) -> Node:
    return Node(name=f"{cluster}-0", cluster=cluster, index=0, host=host, address="", mac="", cpus=cpus, memory=10)


def started(found: list[Verdict]) -> str:
    return " ".join(verdict.key for verdict in found if verdict.starts)


def test_first_come_first_served_by_priority_and_in_turns() -> None:
    entered = [wanted(key, uid=uid) for key, uid in (("a1", 1), ("a2", 1), ("a3", 1), ("b1", 2), ("c1", 3))]
    assert [one.key for one in in_order(entered, {})] == ["a1", "b1", "c1", "a2", "a3"]
    assert [one.key for one in in_order(entered, {2: 2, 1: 1})] == ["c1", "a1", "a2", "b1", "a3"]
    entered[2] = replace(entered[2], priority=5)
    entered[0] = replace(entered[0], priority=-1)
    assert [one.key for one in in_order(entered, {})] == ["a3", "b1", "c1", "a2", "a1"]


def test_a_later_one_goes_ahead_only_if_it_ends_in_time() -> None:
    nodes, ends = [node("one", "a1")], {"one": NOW + 100}
    large = wanted("large", nodes=2, lease=500.0)
    for lease, starts in ((100.0, "small"), (101.0, ""), (None, "")):
        found = decide([large, wanted("small", lease=lease)], HOSTS, nodes, [], ends, NOW)
        assert started(found) == starts, lease
        assert found[0].at == NOW + 100
    found = decide([large, wanted("small"), wanted("short", lease=50.0)], HOSTS, nodes, [], ends, NOW)
    assert started(found) == "short" and found[1].at == NOW + 600, "behind both reservations"


def test_without_the_ends_of_leases_others_take_only_other_hosts() -> None:
    nodes = [node("one", "a1")]
    first = wanted("first", hosts=("a1",))
    found = decide([first, wanted("any"), wanted("there", hosts=("a1",), cpus=0.1)], HOSTS, nodes, [], {}, NOW)
    assert started(found) == "any" and "no lease gives the time" in found[0].why and found[0].at is None
    found = decide([wanted("first", nodes=2), wanted("any", cpus=0.1, lease=1.0)], HOSTS, nodes, [], {}, NOW)
    assert started(found) == ""


def test_an_obstacle_of_its_own_keeps_nobody_else() -> None:
    found = decide([wanted("poor", obstacle="the quota of ann"), wanted("next")], HOSTS, [], [], {}, NOW)
    assert started(found) == "next" and found[0].why == "the quota of ann"


def test_leases_that_ended_do_not_count_as_room_before_the_nodes_are_gone() -> None:
    nodes, ends = [node("one", "a1"), node("two", "a2")], {"one": NOW - 50, "two": NOW + 10}
    found = decide([wanted("next"), wanted("short", lease=5.0)], HOSTS, nodes, [], ends, NOW)
    assert started(found) == "" and found[0].at == NOW + 10


def test_one_that_waits_for_those_before_it_closes_no_host_until_these_begin() -> None:
    nodes, ends = [node("one", "a1")], {"one": NOW + 100}
    queue = [wanted("large", nodes=2), wanted("long", lease=900.0), wanted("short", lease=99.0), wanted("more")]
    assert started(decide(queue, HOSTS, nodes, [], ends, NOW)) == "short"


def test_hosts_that_cannot_be_used_now_come_back() -> None:
    away = [host.model_copy(update={"drained": True}) for host in HOSTS]
    assert not can_ever_start(wanted("large", nodes=2), away)
    assert "2 nodes" not in can_ever_start(wanted("large", nodes=3), away) != ""
    assert can_ever_start(wanted("large", nodes=2), [HOSTS[0], away[1].model_copy(update={"lost": True})])
    assert started(decide([wanted("one")], away, [], [], {}, NOW)) == ""


_LEASES = st.none() | st.integers(1, 300).map(float)
_QUEUES = st.lists(st.tuples(st.integers(1, 3), st.sampled_from([0.5, 1.0, 2.0, 3.0, 4.0]), _LEASES), max_size=6)
_RUNNING = st.lists(st.tuples(st.sampled_from(["a1", "a2"]), st.sampled_from([1.0, 2.0]), _LEASES), max_size=4)


@given(_QUEUES, _RUNNING)
@settings(max_examples=examples(150))
def test_backfill_delays_none_before_it(shapes: Any, running: Any) -> None:
    """The times of those before are the same without those behind; hosts are never overfull."""
    nodes, ends, used = list[Node](), dict[str, float](), {"a1": 0.0, "a2": 0.0}
    for number, (host, cpus, lease) in enumerate(running):
        if used[host] + cpus <= 4:
            used[host] += cpus
            nodes.append(node(f"r{number}", host, cpus))
            ends |= {} if lease is None else {f"r{number}": NOW + lease}
    queue = [
        wanted(f"q{index}", nodes=count, cpus=cpus, lease=lease) for index, (count, cpus, lease) in enumerate(shapes)
    ]
    whole = decide(queue, HOSTS, nodes, [], ends, NOW)
    for length in range(len(queue)):
        assert decide(queue[:length], HOSTS, nodes, [], ends, NOW) == whole[:length]
    taken = sum(one.needs[0].cpus * len(one.needs) for one, v in zip(queue, whole, strict=True) if v.starts)
    assert taken + sum(used.values()) <= 8
    assert all(verdict.at is None or NOW < verdict.at < math.inf for verdict in whole)


def test_a_long_queue_is_planned_as_far_as_its_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wherry.schedule.queue._DEPTH", 2)
    nodes, ends = [node("one", "a1"), node("two", "a2")], {"one": NOW + 100}
    found = decide([wanted(str(number), lease=5.0) for number in range(4)], HOSTS, nodes, [], ends, NOW)
    assert [verdict.at for verdict in found] == [NOW + 100, NOW + 105, None, None]
    assert found[3].why == "2 before it wait"
