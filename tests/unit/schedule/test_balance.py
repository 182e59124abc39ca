"""The rule of balancing: jobs that are packed, left, relieved, or given a faster host; and its invariants."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs_in_mind import COST, MIB, NOW, Imagined, Job, hosts_at, nodes_on, ring

from properties import examples
from wherry.model.balance import Kind, Verdict
from wherry.model.records import Move, Node, Phase
from wherry.schedule.balance import Rule, confirmed, plan
from wherry.schedule.cost import downtime
from wherry.schedule.placement import NodeNeed, Used, shortage
from wherry.schedule.routes import SHARE

APART = ["a1", "a2", "b1", "b2"]
AT_ONCE = Rule(cooldown=0.0, hold=0.0)


def test_a_network_bound_job_is_packed_where_room_appeared() -> None:
    world = Imagined(hosts_at("ab", 4), jobs=[Job(nodes_on("cg", APART), pairs=ring(4))])
    found = world.plan()
    (verdict,) = found.verdicts
    assert verdict.kind is Kind.NETWORK and verdict.link > 0.5 and verdict.step < 0.5
    assert {(m.node, m.source) for m in verdict.moves} in (
        {("cg-2", "b1"), ("cg-3", "b2")},
        {("cg-0", "a1"), ("cg-1", "a2")},
    )
    assert "together at" in verdict.moves[0].reason and "pays after" in verdict.text
    assert found.after < 0.6 * found.before and verdict.cost > 0


def test_who_gets_a_faster_host_elsewhere_is_followed_at_once() -> None:
    """The loaded node alone would gain already; but then the job would wait for a link."""
    fast, slow = hosts_at("a", 1), [host.model_copy(update={"speed": 0.5}) for host in hosts_at("b", 1)]
    nodes = nodes_on("x", ["b1", "b1"], 0.5)
    world = Imagined(fast + slow, "1ms", jobs=[Job(nodes, {"x-0": 0.001, "x-1": 0.01}, {(0, 1): 3, (1, 0): 3})])
    found = world.plan()
    assert {(move.node, move.destination) for move in found.moves} == {("x-0", "a1"), ("x-1", "a1")}
    assert [move.reason[:16] for move in found.moves] == ["together at a: l", "it computes 99% "]
    world.apply(found)
    assert world.plan(AT_ONCE).moves == ()


def test_without_room_it_says_how_much_there_is() -> None:
    idle = nodes_on("other", ["a3", "a4", "b3"])
    world = Imagined(hosts_at("ab", 4), jobs=[Job(nodes_on("cg", APART), pairs=ring(4))], idle=idle)
    assert [m.destination for m in world.plan().moves] == []
    (verdict,) = world.plan().verdicts
    assert "site a has room for 0 of the 2" in verdict.text and "site b has room for 1 of the 2" in verdict.text


@pytest.mark.parametrize("large", [0, 1, 2])
def test_nodes_of_different_sizes_are_packed_where_each_has_room(large: int) -> None:
    """A host that is too small for one of them may do for another, in whatever order they are looked at."""
    apart = nodes_on("cg", ["b1", "b2", "b3", "a4"], cpus=0.5)
    nodes = tuple(node.model_copy(update={"cpus": 1.0}) if node.index == large else node for node in apart)
    taken = nodes_on("other", ["a1", "a2"], cpus=0.5)
    job = Job(nodes, pairs=ring(4), pinned=frozenset({"cg-3"}))
    world = Imagined(hosts_at("ab", 4), jobs=[job], idle=taken)
    (verdict,) = world.plan().verdicts
    where = {move.node: move.destination for move in verdict.moves}
    assert set(where) == {"cg-0", "cg-1", "cg-2"} and {host[0] for host in where.values()} == {"a"}, verdict.text
    world.apply(world.plan())
    assert world.overfull() == []


@pytest.mark.parametrize(
    "job",
    [
        Job(nodes_on("ep", APART), work=1.0),
        Job(nodes_on("lu", APART), work=0.2, pairs=ring(4, 60), flight=40),
        Job(nodes_on("uneven", APART), work={"uneven-0": 1.0, "uneven-1": 0.1, "uneven-2": 0.1, "uneven-3": 0.1}),
    ],
    ids=["ep", "pipelined", "uneven"],
)
def test_other_jobs_stay_apart(job: Job) -> None:
    (verdict,) = Imagined(hosts_at("ab", 4), jobs=[job]).plan().verdicts
    assert verdict.moves == () and verdict.kind is Kind.CPU and verdict.before == verdict.after


def test_a_job_that_ends_soon_is_left() -> None:
    (verdict,) = (
        Imagined(hosts_at("ab", 4), jobs=[Job(nodes_on("cg", APART), pairs=ring(4), remaining=1)]).plan().verdicts
    )
    assert verdict.moves == () and "the gain must be 1.5 times the cost" in verdict.text


def test_a_slow_link_makes_the_moves_dear() -> None:
    world = Imagined(hosts_at("ab", 4), bandwidth="1Mbit/s", jobs=[Job(nodes_on("cg", APART), pairs=ring(4))])
    (verdict,) = world.plan().verdicts
    assert verdict.moves == () and "gain must be" in verdict.text


def test_a_move_is_priced_with_what_links_leave_to_moves() -> None:
    world = Imagined(hosts_at("ab", 1), bandwidth="8Mbit/s", latency="0ms").world()
    one, other = world.hosts["a1"], world.hosts["b1"]
    assert downtime(COST, one, other, world.routes) == pytest.approx(COST.downtime + COST.bytes / (SHARE * 1e6))


def test_an_overloaded_host_is_relieved() -> None:
    world = Imagined(hosts_at("a", 4), foreign={"a2": 0.6}, jobs=[Job(nodes_on("x", ["a1", "a2"]))])
    (verdict,) = world.plan().verdicts
    assert [(m.node, m.destination) for m in verdict.moves] == [("x-1", "a3")]
    assert "the others wait for it" in verdict.moves[0].reason and 0.35 < verdict.step < 0.5


def test_the_loaded_rank_gets_the_faster_host() -> None:
    hosts = [*hosts_at("a", 3, speed=0.5), *hosts_at("b", 1)]
    work = {"x-0": 0.01, "x-1": 0.04, "x-2": 0.01}
    (verdict,) = Imagined(hosts, jobs=[Job(nodes_on("x", ["a1", "a2", "a3"]), work=work)]).plan().verdicts
    assert [(m.node, m.destination) for m in verdict.moves] == [("x-1", "b1")]


def test_nodes_that_are_slow_together_leave_together() -> None:
    """To the free host, although the next one would do for the first of them while the second is as slow as it was."""
    hosts = hosts_at("ab", 2, speed=0.5)
    foreign = {"a1": 0.5, "a2": 0.5, "b2": 0.5}
    world = Imagined(hosts, foreign=foreign, jobs=[Job(nodes_on("x", ["a2", "a2"], cpus=0.5))])
    assert {(move.node, move.destination) for move in world.plan().moves} == {("x-0", "b1"), ("x-1", "b1")}


def test_who_would_be_faster_elsewhere_takes_no_room_from_those_that_are_packed() -> None:
    """Host a2 is the one for x-2 alone, and for all of x; it has room for two nodes."""
    hosts = [
        host.model_copy(update={"memory": 128 * MIB, "drained": host.name != "a2"})
        for host in hosts_at("ab", 2, cores=2.0, speed=0.5)
    ]
    nodes = nodes_on("x", ["b1", "a1", "b1", "a1"], cpus=0.5)
    nodes = (*nodes[:2], nodes[2].model_copy(update={"cpus": 1.0}), nodes[3])
    world = Imagined(hosts, "1ms", foreign={"b1": 0.5}, jobs=[Job(nodes, work=0.001, pairs=ring(4))])
    assert {(m.node, m.destination) for m in world.plan().moves} == {("x-0", "a2"), ("x-2", "a2")}


def test_a_faster_host_beyond_a_link_is_not_worth_it_for_who_talks() -> None:
    hosts = [*hosts_at("a", 2, speed=0.5), *hosts_at("b", 1)]
    world = Imagined(hosts, jobs=[Job(nodes_on("x", ["a1", "a2"]), pairs=ring(2))])
    assert world.plan().moves == ()


def test_a_cpu_bound_job_is_spread_when_hosts_are_free() -> None:
    world = Imagined(
        hosts_at("ab", 1, cores=2.0), foreign={"a1": 1.2}, jobs=[Job(nodes_on("ep", ["a1", "a1"]), work=1.0)]
    )
    (verdict,) = world.plan().verdicts
    assert {m.destination for m in verdict.moves} == {"b1"} and verdict.step < 0.8


def test_pinned_nodes_stay_and_say_so() -> None:
    job = Job(nodes_on("cg", APART), pairs=ring(4), pinned=frozenset({"cg-0", "cg-3"}))
    (verdict,) = Imagined(hosts_at("ab", 4), jobs=[job]).plan().verdicts
    assert verdict.moves == () and "cg-3 is pinned and not at a" in verdict.text


def test_a_cluster_that_just_moved_is_left_alone() -> None:
    job = Job(nodes_on("cg", APART), pairs=ring(4), moved={"cg-1": NOW - 10})
    (verdict,) = Imagined(hosts_at("ab", 4), jobs=[job]).plan().verdicts
    assert verdict.moves == () and "moved 10 s ago" in verdict.text
    assert Imagined(hosts_at("ab", 4), jobs=[job]).plan(now=NOW + 60).moves
    assert Imagined(hosts_at("ab", 4), jobs=[job]).plan(now=NOW - 3600).moves  # the clock was set back since


def test_one_room_is_given_once_and_to_who_gains_most() -> None:
    small, large = (
        Job(nodes_on("s", ["a1", "b1"]), pairs=ring(2, 1)),
        Job(nodes_on("l", ["a2", "b2"]), pairs=ring(2, 9)),
    )
    idle = nodes_on("idle", ["b3"])
    world = Imagined(hosts_at("ab", 3), jobs=[small, large], idle=idle)
    small.remaining = 100
    found = world.plan()
    assert [(m.node, m.destination) for m in found.moves] == [("l-1", "a3")]
    world.apply(found)
    assert world.overfull() == []


def test_a_decision_is_confirmed_by_the_one_before() -> None:
    world = Imagined(hosts_at("ab", 4), jobs=[Job(nodes_on("cg", APART), pairs=ring(4))])
    (verdict,) = world.plan().verdicts
    site = {host.name: host.site for host in world.hosts}
    assert confirmed(verdict, verdict, site) == verdict
    waits = confirmed(verdict, None, site)
    assert waits.moves == () and waits.after == waits.before and "next measurement" in waits.text


def test_another_host_of_the_site_confirms_and_another_site_does_not() -> None:
    world = Imagined(hosts_at("ab", 4), jobs=[Job(nodes_on("cg", APART), pairs=ring(4))])
    (verdict,) = world.plan().verdicts
    site = {host.name: host.site for host in world.hosts}

    def elsewhere(number: str, swap: bool) -> Verdict:
        moves = []
        for move in verdict.moves:
            at = site[move.destination]
            at = {"a": "b", "b": "a"}[at] if swap else at
            moves.append(move.model_copy(update={"destination": f"{at}{number}"}))
        return verdict.model_copy(update={"moves": tuple(moves)})

    assert confirmed(verdict, elsewhere("4", swap=False), site).moves == verdict.moves
    assert confirmed(verdict, elsewhere("4", swap=True), site).moves == ()


def test_a_host_that_would_refuse_a_node_is_not_proposed_and_says_why() -> None:
    job = Job(nodes_on("cg", APART), pairs=ring(4))
    world = Imagined(hosts_at("ab", 4), jobs=[job])
    shown = world.world()
    outside = {("cg-2", f"a{n}"): "it lacks /srv" for n in range(1, 5)} | {("cg-0", "b3"): "no CRIU"}

    def planned(refused: dict[tuple[str, str], str]) -> Verdict:
        (verdict,) = plan([replace(job.case(shown), refused=refused)], shown, world.nodes(), [], NOW, Rule()).verdicts
        return verdict

    moves = {(move.node, move.destination) for move in planned(outside).moves}
    assert {node for node, _ in moves} == {"cg-0", "cg-1"} and ("cg-0", "b3") not in moves
    none = planned({(node.name, host): "no CRIU" for node in job.nodes for host in shown.hosts})
    assert none.moves == () and "no CRIU" in none.text


@pytest.mark.parametrize("speed", [1.0, 0.5])
def test_flows_that_were_not_counted_move_nothing_over_links(speed: float) -> None:
    """Not to a site of faster hosts either: the time that the link takes is not known."""
    hosts = [*hosts_at("a", 4, speed=speed), *hosts_at("b", 4)]
    world = Imagined(hosts, jobs=[Job(nodes_on("cg", APART), work=1.0, pairs=ring(4))])
    shown = world.world()
    case = world.jobs[0].case(shown)
    blind = case.profile.model_copy(update={"flows": None, "uncounted": "nobody looks"})
    (verdict,) = plan([replace(case, profile=blind)], shown, world.nodes(), [], NOW, Rule()).verdicts
    assert verdict.kind is Kind.UNKNOWN and verdict.moves == ()
    assert "nobody looks" in verdict.text and "take at most" not in verdict.text


# Invariants, whatever is measured.


@st.composite
def imagined(draw: st.DrawFn, jobs: int = 3) -> Imagined:
    """Any hosts, with nodes that fit on them, of up to so many jobs, and nodes of nobody's job that are being moved."""
    hosts = [
        host.model_copy(
            update={
                "speed": draw(st.sampled_from([0.5, 1.0])),
                "down": draw(st.integers(0, 9)) == 0,
                "drained": draw(st.integers(0, 9)) == 0,
                "memory": draw(st.sampled_from([128, 1024, 1024])) * MIB,
            }
        )
        for host in hosts_at(
            draw(st.sampled_from(["a", "ab", "abc"])), draw(st.integers(2, 4)), draw(st.sampled_from([1.0, 2.0]))
        )
    ]
    foreign = {host.name: draw(st.sampled_from([0.0, 0.0, 0.5])) for host in hosts}
    world = Imagined(hosts, draw(st.sampled_from(["0ms", "1ms", "10ms"])), foreign=foreign)
    used = dict[str, Used]()
    names = [host.name for host in hosts]

    def put(name: str, cpus: float) -> Node | None:
        """A node where there is room for it; hosts are down or drained since."""
        need = NodeNeed(cpus, 64 * MIB)
        up = [host.model_copy(update={"down": False, "drained": False}) for host in hosts]
        fitting = [host.name for host in up if not shortage(host, used.get(host.name, Used()), need)]
        if not fitting:
            return None
        at = draw(st.sampled_from(fitting))
        used[at] = used.get(at, Used()).plus(need)
        return nodes_on(name, [at], cpus)[0]

    for cluster in "xyz"[: draw(st.integers(1, jobs))]:
        made = [put(cluster, draw(st.sampled_from([0.5, 1.0, 1.0]))) for _ in range(draw(st.integers(1, 4)))]
        there = [node for node in made if node is not None]
        nodes = tuple(node.model_copy(update={"name": f"{cluster}-{i}", "index": i}) for i, node in enumerate(there))
        if nodes:
            own = [node.name for node in nodes]
            most = max(sum(node.host == other.host for other in nodes) for node in nodes)
            world.jobs.append(
                Job(
                    nodes,
                    work={name: draw(st.sampled_from([0.001, 0.01, 0.02])) for name in own},
                    pairs=ring(len(nodes), draw(st.integers(0, 5))),
                    remaining=draw(st.sampled_from([1.0, 600.0, 6000.0])),
                    pinned=draw(st.just(frozenset[str]()) | st.frozensets(st.sampled_from(own), max_size=2)),
                    allowed=draw(st.none() | st.frozensets(st.sampled_from(names), min_size=1)),
                    most=draw(st.sampled_from([None, most, most + 1])),
                )
            )
    for index in range(draw(st.integers(0, 2))):
        one, other = put(f"moving{index}", 0.5), put(f"moving{index}", 0.5)
        if one and other and one.host != other.host:
            world.idle += (one,)
            world.under_way += (
                Move(
                    id=f"mv-{index}", node=one.name, cluster=one.cluster, source=one.host, destination=other.host,
                    phase=Phase.TRANSFER, created=NOW,
                ),
            )  # fmt: skip
    assert world.overfull() == []
    return world


@settings(deadline=None, max_examples=examples(100))
@given(world=imagined())
def test_never_over_capacity_nor_a_pinned_node_and_a_dry_run_changes_nothing(world: Imagined) -> None:
    before = [job.nodes for job in world.jobs]
    found = world.plan()
    assert [job.nodes for job in world.jobs] == before and world.plan() == found
    closed = {host.name for host in world.hosts if host.down or host.drained}
    assert not closed & {move.destination for move in found.moves}
    assert len({move.node for move in found.moves}) == len(found.moves)
    where = {move.node: move.destination for move in found.moves}
    for job in world.jobs:
        moved = {node.name: where[node.name] for node in job.nodes if node.name in where}
        assert not job.pinned & set(moved)
        assert job.allowed is None or set(moved.values()) <= job.allowed
        then = [where.get(node.name, node.host) for node in job.nodes]
        assert all(job.most is None or then.count(host) <= job.most for host in moved.values())
    both = Imagined(world.hosts, idle=tuple(world.nodes()), under_way=world.under_way)
    here = {node.name: node for node in world.nodes()}
    both.idle += tuple(
        here[m.node].model_copy(update={"name": f"new {m.node}", "host": m.destination}) for m in found.moves
    )
    assert both.overfull() == [], "while they move, nodes are on both hosts"
    for verdict in found.verdicts:
        assert verdict.text and verdict.after <= verdict.before + 1e-9


@settings(deadline=None, max_examples=examples(100))
@given(world=imagined(jobs=1))
def test_a_plan_that_was_done_plans_nothing(world: Imagined) -> None:
    """With neither cool-down nor hold: there is nothing better, by the same figures. But a node that leaves a host may
    make room there for another of its job, which no plan counts on before; so it ends after as many as have nodes."""
    for _ in world.nodes():
        found = world.plan(AT_ONCE)
        world.apply(found)
        again = world.plan(AT_ONCE)
        left = {move.source for move in found.moves}
        assert not again.moves or left & {move.destination for move in again.moves}
    assert world.plan(AT_ONCE).moves == ()


@pytest.mark.parametrize("rule", [Rule(), AT_ONCE], ids=["as it is", "without cool-down and hold"])
@settings(deadline=None, max_examples=examples(60))
@given(world=imagined(), seed=st.none() | st.integers(0, 1000))
def test_no_oscillation(world: Imagined, seed: int | None, rule: Rule) -> None:
    """Whether measurements jitter by a tenth or not: no node comes back, and moves end."""
    jitter = None if seed is None else random.Random(seed)
    been: dict[str, list[str]] = {node.name: [node.host] for node in world.nodes()}
    for turn in range(12):
        now = NOW + 61.0 * turn
        found = world.plan(rule, now, jitter)
        world.apply(found, now)
        for move in found.moves:
            assert move.destination not in been[move.node], (turn, move, been[move.node])
            been[move.node].append(move.destination)
    assert sum(len(hosts) - 1 for hosts in been.values()) <= 2 * len(been)
    assert jitter or not world.plan(rule, NOW + 61.0 * 12).moves, "after the moves of all jobs nothing is planned"


def test_thousands_of_nodes() -> None:
    """12 clusters of 250 nodes on 1120 hosts."""
    hosts = hosts_at("abcd", 280, cores=4.0)
    names, random_ = [host.name for host in hosts for _ in range(4)], random.Random(1)
    random_.shuffle(names)
    world = Imagined(hosts)
    for number in range(12):
        nodes = nodes_on(f"c{number}", names[number * 250 : number * 250 + 250])
        world.jobs.append(Job(nodes, work=0.01 if number % 2 else 1.0, pairs=ring(250, 2)))
    shown = world.world()
    cases = [job.case(shown) for job in world.jobs]
    found = plan(cases, shown, world.nodes(), [], NOW, Rule())
    world.apply(found)
    assert found.moves and world.overfull() == []
