"""Swaps in plans of balancing: where every host is full, which jobs gain or pay, and its invariants."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs_in_mind import NOW, Imagined, Job, hosts_at, nodes_on, ring

from properties import examples
from wherry.model.balance import BalancePlan
from wherry.model.records import Host, HostFacts, Pin
from wherry.schedule.balance import Rule
from wherry.schedule.swaps import with_swaps


def planned(world: Imagined, rule: Rule | None = None, now: float = NOW) -> BalancePlan:
    seen = world.world()
    cases = [job.case(seen) for job in world.jobs]
    chosen = rule or Rule()
    return with_swaps(world.plan(chosen, now), cases, seen, world.nodes(), world.under_way, now, chosen)


def two_jobs(**more: object) -> Imagined:
    """Two jobs that exchange messages, each with a node at either site, on hosts that are full."""
    return Imagined(
        hosts_at("ab", 2),
        jobs=[
            Job(nodes_on("x", ["a1", "b1"]), pairs=ring(2), remaining=600, **more),  # type: ignore[arg-type]
            Job(nodes_on("y", ["a2", "b2"]), pairs=ring(2), remaining=300),
        ],
    )


def targets(plan: BalancePlan) -> dict[str, tuple[str, str]]:
    return {move.node: (move.destination, move.swap) for move in plan.moves}


def test_two_jobs_that_are_apart_get_a_site_each() -> None:
    world = two_jobs()
    assert world.plan().moves == (), "a move alone has no room anywhere"
    plan = planned(world)
    first, second = plan.verdicts
    assert len(first.moves) == 2 and second.moves == () and first.step < 0.5
    assert targets(plan) in (
        {"x-1": ("a2", "y-0"), "y-0": ("b1", "x-1")},
        {"x-0": ("b2", "y-1"), "y-1": ("a1", "x-0")},
    )
    assert "no host has room" in first.text and "is swapped with" in second.text
    assert first.moves[0].reason.startswith(f"changes places with {first.moves[0].swap}, together at")
    world.apply(plan)
    assert world.overfull() == [] and targets(planned(world)) == {}
    assert targets(planned(world, Rule(cooldown=0, hold=0))) == {}


def test_a_larger_cluster_is_packed_by_several_swaps() -> None:
    world = Imagined(
        hosts_at("ab", 4),
        jobs=[
            Job(nodes_on("x", ["a1", "a2", "b1", "b2"]), pairs=ring(4)),
            Job(nodes_on("y", ["a3", "a4", "b3", "b4"]), pairs=ring(4)),
        ],
    )
    plan = planned(world)
    assert len(plan.moves) == 4 and "2 swaps" in plan.verdicts[0].text
    world.apply(plan)
    assert world.overfull() == []
    assert {len({node.host[0] for node in job.nodes}) for job in world.jobs} == {1}


def test_an_idle_node_of_the_own_cluster_gives_its_place() -> None:
    nodes = nodes_on("x", ["a1", "b1", "a2"])
    job = Job(nodes[:2], pairs=ring(2))
    world = Imagined(hosts_at("a", 2) + hosts_at("b", 1), jobs=[job], idle=(nodes[2],))
    seen = world.world()
    measured = job.case(seen)
    case = replace(measured, nodes=nodes, costs={node.name: measured.costs["x-0"] for node in nodes})
    plan = with_swaps(world.plan(), [case], seen, nodes, (), NOW, Rule())
    assert targets(plan) == {"x-1": ("a2", "x-2"), "x-2": ("b1", "x-1")}


def test_the_loaded_rank_changes_places_with_one_on_a_faster_host() -> None:
    hosts = [*hosts_at("a", 1, speed=0.5), *(host for host in hosts_at("a", 2) if host.name == "a2")]
    world = Imagined(hosts, jobs=[Job(nodes_on("x", ["a1", "a2"]), work={"x-0": 0.04, "x-1": 0.01})])
    plan = planned(world)
    assert targets(plan) == {"x-0": ("a2", "x-1"), "x-1": ("a1", "x-0")}
    assert "on a slower host" in plan.moves[0].reason and plan.moves[1].reason.endswith("so that x-0 has its place")
    world.apply(plan)
    assert targets(planned(world, Rule(cooldown=0, hold=0))) == {}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"pinned": frozenset({"x-0", "x-1"})}, "pinned"),
        ({"moved": {"x-0": NOW - 10}}, "it moved a moment ago"),
        ({"allowed": frozenset({"a1", "b1"})}, "its file has no other hosts"),
        ({"left": {("x-1", "a2"): NOW - 100, ("x-0", "b2"): NOW - 100}}, "it left these hosts"),
    ],
)
def test_what_keeps_a_node_from_being_moved_keeps_it_from_being_swapped(change: dict[str, object], why: str) -> None:
    world = two_jobs(**change)
    world.jobs[1].pairs = {}
    world.jobs[1].work = 0.01
    assert targets(planned(world)) == {}, why


def test_nobody_else_pays_for_a_swap() -> None:
    """y's nodes are at one site already: with one of them elsewhere it would wait for the link."""
    world = Imagined(
        [*hosts_at("a", 3), *hosts_at("b", 1)],
        jobs=[
            Job(nodes_on("x", ["a1", "b1"]), pairs=ring(2)),
            Job(nodes_on("y", ["a2", "a3"]), pairs=ring(2)),
        ],
    )
    assert targets(planned(world)) == {}


def test_a_node_that_is_too_large_for_the_other_host_is_not_swapped() -> None:
    small, large = hosts_at("a", 2), hosts_at("b", 2, cores=2.0)
    world = Imagined(
        [*small, *large],
        jobs=[
            Job((nodes_on("x", ["a1"])[0], *nodes_on("x", ["b1", "b1"], cpus=2.0)[1:]), pairs=ring(2)),
            Job((nodes_on("y", ["a2"])[0], *nodes_on("y", ["b2", "b2"], cpus=2.0)[1:]), pairs=ring(2)),
        ],
    )
    assert all(target[0] in "ab" and name.endswith("-0") for name, (target, _) in targets(planned(world)).items())


def crowded(cores: float, clusters: str) -> Imagined:
    """Two nodes of 1.5 CPUs at b1 would be with others at site a, where a1, with so many cores, has two of 1 CPU. The
    nodes of either size are of one cluster or of two, which have a node at the other site, too."""
    size, each = {"a1": cores, "b1": 3.0}, 1 + len(clusters) // 2
    hosts = [*hosts_at("a", each, cores=1.5), *hosts_at("b", each)]
    hosts = [host.model_copy(update={"cores": size.get(host.name, host.cores)}) for host in hosts]
    if len(clusters) == 2:
        large, small = [["a2", "b1", "b1"]], [["b2", "a1", "a1"]]
    else:
        large, small = [["a2", "b1"], ["a3", "b1"]], [["b2", "a1"], ["b3", "a1"]]
    jobs, names = list[Job](), iter(clusters)
    for where, cpus in (*((one, 1.5) for one in large), *((one, 1.0) for one in small)):
        name = next(names)
        left = {(f"{name}-0", host): NOW - 100 for host in size}  # so no node goes there alone
        allowed = frozenset({*where, *size})
        jobs.append(Job(nodes_on(name, where, cpus), pairs=ring(len(where)), allowed=allowed, left=left))
    return Imagined(hosts, jobs=jobs)


@pytest.mark.parametrize(("clusters", "fit"), [("xy", 0), ("xyzw", 2)], ids=["one exchange", "exchanges of a plan"])
def test_what_several_pairs_take_is_counted_together(clusters: str, fit: int) -> None:
    """Each pair has room at a1, both have it only where a1 is larger."""
    world = crowded(3.0, clusters)
    plan = planned(world)
    assert len(plan.moves) == 4
    world.apply(plan)
    assert world.overfull() == []
    world = crowded(2.5, clusters)
    plan = planned(world)
    assert len(plan.moves) == fit
    world.apply(plan)
    assert world.overfull() == []


@pytest.mark.parametrize(("most", "moves"), [(None, 4), (2, 4), (1, 0)])
def test_most_nodes_of_a_host_are_kept_by_several_pairs_too(most: int | None, moves: int) -> None:
    world = crowded(3.0, "xy")
    world.jobs[0].most = most
    assert len(planned(world).moves) == moves


@pytest.mark.parametrize(("cpus", "moves"), [(1, 0), (2, 2)])
def test_a_pinned_node_needs_cpus_beside_those_of_its_partner(cpus: int, moves: int) -> None:
    facts = HostFacts(
        kernel="6", architecture="x", cpu_model="m", cpu_features=frozenset(), memory=1, runtime="", criu="1",
        cpus=tuple(range(cpus)),
    )  # fmt: skip
    world = two_jobs()
    world.hosts = [host.model_copy(update={"facts": facts}) for host in world.hosts]
    for job in world.jobs:
        job.nodes = tuple(node.model_copy(update={"pin": Pin(cpus=(0,))}) for node in job.nodes)
    assert len(planned(world).moves) == moves


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_never_over_capacity_and_never_to_and_fro(seed: int) -> None:
    dice = random.Random(seed)
    hosts: list[Host] = hosts_at("ab", 3, speed=1.0)
    hosts = [host.model_copy(update={"speed": dice.choice([0.5, 1.0])}) for host in hosts]
    names = [host.name for host in hosts]
    dice.shuffle(names)
    jobs = []
    for cluster in "xyz"[: dice.randint(1, 3)]:
        own = [names.pop() for _ in range(2)]
        pairs = ring(2, dice.randint(1, 6)) if dice.random() < 0.7 else {}
        work = {f"{cluster}-{i}": dice.choice([0.001, 0.01, 0.04]) for i in range(2)}
        jobs.append(Job(nodes_on(cluster, own), pairs=pairs, work=work, remaining=dice.choice([30.0, 600.0])))
    world = Imagined(hosts, latency=dice.choice(["1ms", "20ms"]), jobs=jobs)
    rule = Rule(cooldown=0.0, hold=0.0)
    for _ in range(8):
        plan = planned(world, rule)
        if not plan.moves:
            break
        by_node = targets(plan)
        for name, (_, partner) in by_node.items():
            assert not partner or by_node[partner][1] == name
        world.apply(plan)
        assert world.overfull() == []
    else:
        pytest.fail("it plans moves for ever")
