"""The nodes of spawned processes: least loaded hosts first, known and unknown names in the key `host`."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inside_programs import GROUP, Program, make_job
from rest_service import Service

from properties import examples
from wherry.base.errors import Code, Refused
from wherry.model.records import NodeState
from wherry.schedule.spawn_placement import Seat, named, places
from wherry.service.inside_commands import InsideCommands
from wherry.service.recent_places import Promise, RecentPlaces
from wherry.service.rest.inside import make_inside_app


def seat(number: int, host: str, load: float = 0.0, cores: float = 4.0) -> Seat:
    return Seat(node=f"n-{number}", address=f"10.77.1.{number + 1}", host=host, cpus=1, cores=cores, load=load)


SEATS = [seat(0, "a1", 3.0), seat(1, "b1"), seat(2, "a1", 3.0), seat(3, "b1")]


def test_the_least_loaded_host_comes_first_and_its_nodes_by_turns() -> None:
    assert places(SEATS, 1, None, 9) == {"n-1": 1}
    assert places(SEATS, 3, None, 9) == {"n-1": 2, "n-3": 1}
    assert places(SEATS, 5, None, 9) == {"n-1": 2, "n-3": 2, "n-0": 1}
    busy = [SEATS[0], replace(SEATS[1], busy=3), SEATS[3]]
    assert places(busy, 3, None, 9) == {"n-3": 3}, "by the ranks that nodes have"


def test_what_moves_or_is_drained_comes_last() -> None:
    moving = [replace(one, second=one.host == "b1") for one in SEATS]
    assert places(moving, 2, None, 9) == {"n-0": 1, "n-2": 1}
    assert places([moving[1]], 2, None, 9) == {"n-1": 2}


def test_names_of_nodes_and_hosts_are_known() -> None:
    assert named(SEATS, "n-2") == named(SEATS, " 10.77.1.3 ,") == {"n-2": None}
    assert named(SEATS, "a1,n-1:2,n-1:1,n-2:4") == {"n-0": None, "n-2": None, "n-1": 3}
    assert places(SEATS, 4, named(SEATS, "n-1:1,a1"), 9) == {"n-1": 1, "n-0": 2, "n-2": 1}
    for text in ("nowhere", "n-1,nowhere", "n-1:x", "n-1:", "n-1:-1", "n-1:123456", "N-1"):
        with pytest.raises(Refused) as refused:
            named(SEATS, text)
        assert refused.value.code is Code.NOT_FOUND and "n-0, n-1, n-2, n-3 on a1, b1" in refused.value.why
    with pytest.raises(Refused) as refused:
        places(SEATS, 4, named(SEATS, "n-1:1,n-2:2"), 9)
    assert refused.value.code is Code.NO_CAPACITY
    with pytest.raises(Refused):
        places([], 1, None, 9)


def test_a_list_that_is_too_long_has_the_nodes_with_room() -> None:
    found = places(SEATS, 5, named(SEATS, "n-1:1,n-3:1,n-0:3,n-2:2"), 2)
    assert found == {"n-0": 3, "n-2": 2}, "not the least loaded ones, which have too little"
    with pytest.raises(Refused) as refused:
        places(SEATS, 4, named(SEATS, "n-0:1,n-1:1,n-2:1,n-3:1"), 3)
    assert refused.value.code is Code.NO_CAPACITY and "too long" in refused.value.what


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 8)), min_size=1, max_size=12),
    st.integers(1, 60),
    st.integers(1, 12),
)
@settings(max_examples=examples(200), deadline=None)
def test_all_processes_have_a_place_and_no_host_is_passed_over(
    hosts: list[tuple[str, int]], processes: int, most: int
) -> None:
    loads = dict(hosts)
    seats = [seat(number, host, loads[host]) for number, (host, _) in enumerate(hosts)]
    found = places(seats, processes, None, most)
    assert sum(found.values()) == processes and len(found) <= most and min(found.values()) > 0
    if len(found) < most:
        added = Counter[str]()
        for one in seats:
            added[one.host] += found.get(one.node, 0)
        used = {host: (load + added[host]) / 4 for host, load in loads.items()}
        assert all(used[host] <= min(used.values()) + 1 / 4 + 1e-9 for host in added if added[host])


def test_a_program_learns_where_to_spawn(service: Service) -> None:
    job = make_job(service, rank_nodes=("hello-0", "hello-0", "hello-1", "hello-1", "hello-2"))
    program, store = Program(service, job), service.context.store
    addresses = [node.address for node in store.nodes("hello")]
    first = program("GET", "/places", params={"processes": 3}).json()["hosts"]
    assert sorted(first.split(",")) == sorted(f"{address}:1" for address in addresses), "placed ranks count"
    host = store.nodes("hello")[1].host
    for name in ("hello-1", host, addresses[1]):
        answer = program("GET", "/places", params={"processes": 2, "host": name}).json()
        assert answer["hosts"] == f"{addresses[1]}:2"
    unknown = program("GET", "/places", params={"processes": 2, "host": "nowhere"})
    assert (unknown.status_code, unknown.json()["code"]) == (404, "NOT_FOUND")
    short = program("GET", "/places", params={"processes": 3, "room": 32}).json()["hosts"]
    assert len(short) <= 32 and sum(int(one.partition(":")[2]) for one in short.split(",")) == 3
    for wrong in ({"processes": 0}, {"processes": 5000}, {}, {"processes": 1, "host": "x" * 1025}):
        assert program("GET", "/places", params=wrong).json()["code"] == "USAGE"


def test_only_nodes_of_the_job_that_run_get_any(service: Service) -> None:
    job, store = make_job(service), service.context.store
    store.put_job(job.model_copy(update={"nodes": ("hello-0", "hello-1")}))
    program, nodes = Program(service, job), store.nodes("hello")
    store.put_node(nodes[0].model_copy(update={"state": NodeState.LOST}))
    assert program("GET", "/places", params={"processes": 4}).json()["hosts"] == f"{nodes[1].address}:4"
    assert program("GET", "/places", params={"processes": 4, "host": "hello-2"}).json()["code"] == "NOT_FOUND"


def test_what_others_were_told_counts_as_far_as_they_spawned_it(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that asks without spawning displaces no other; a job that spawns counts for its nodes' CPUs at most."""
    liar, honest = make_job(service), make_job(service)
    nodes = service.context.store.nodes("hello")
    processes = Counter({node.name: 3 for node in nodes})
    places = service.context.require_managers().placements
    monkeypatch.setattr(places, "processes", lambda node: processes[node.name])
    asking, other = Program(service, liar), Program(service, honest)
    other.limits = asking.limits
    other.app = make_inside_app(service.context, asking.limits, GROUP)
    idle = other("GET", "/places", params={"processes": 1}).json()["hosts"].partition(":")[0]
    asking.limits.places.of(liar.id, {liar.id})  # as if the other one's ten seconds were over
    there = next(node for node in nodes if node.address == idle)
    for _ in range(5):
        asking("GET", "/places", params={"processes": 4000, "host": there.name})
    assert other("GET", "/places", params={"processes": 1}).json()["hosts"] == f"{idle}:1"
    asking.limits.places.of(liar.id, {liar.id})
    processes[there.name] += 1000
    own, others = asking.limits.places.of(honest.id, {liar.id, honest.id})
    assert not own and others == {there.name: Promise(20000, 3)}
    found = InsideCommands(service.context, asking.limits, GROUP, honest, nodes[0])._placed(nodes)
    assert found == {node.name: there.cpus if node == there else 0 for node in nodes}
    assert not other("GET", "/places", params={"processes": 1}).json()["hosts"].startswith(idle)


def test_a_job_has_no_more_than_its_share_of_what_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    recent, clock = RecentPlaces(), [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    recent.add("quiet", {"n-1": 2}, {"n-1": 7})
    clock[0] += 4
    recent.add("quiet", {"n-1": 1}, {"n-1": 9})
    for _ in range(10_000):
        recent.add("loud", {"n-2": 1}, {"n-2": 1})
    own, others = recent.of("quiet", {"quiet", "loud"})
    assert own == {"n-1": 3} and others == {"n-2": Promise(256, 1)}
    assert recent.of("loud", {"quiet", "loud"})[1] == {"n-1": Promise(3, 7)}
    clock[0] += 7
    assert recent.of("quiet", {"quiet"}) == ({"n-1": 1}, {})
    assert recent.of("loud", {"quiet", "loud"}) == ({}, {"n-1": Promise(1, 9)}), "a job that ended is forgotten"
