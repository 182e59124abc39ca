"""Verdicts of balancing on a cluster, word for word and figure for figure; and its thresholds at their edges."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from jobs_in_mind import COST, MIB, NOW, Imagined, Job, hosts_at, nodes_on, ring

from wherry.model.balance import Kind, Verdict
from wherry.model.records import Host, Move, Phase
from wherry.schedule.balance import Rule, confirmed, plan

APART = ["a1", "a2", "b1", "b2"]
LINKS = "links between sites take at most 79% of its time (319 answers/s, 0.32 MB/s over them), cg-3 computes 20%"
ALONE = "links between sites take at most 0% of its time (0 answers/s, 0.00 MB/s over them)"
LOADED = "it computes 100% of its time, and the others wait for it"


def cg(**more: Any) -> Job:
    return Job(nodes_on("cg", APART), pairs=ring(4), **more)


def verdict(world: Imagined, rule: Rule | None = None) -> Verdict:
    (found,) = world.plan(rule).verdicts
    return found


def judged(world: Imagined, rule: Rule | None = None, profile: dict[str, Any] | None = None, **more: Any) -> Verdict:
    """The verdict on the only job, with other facts in its case."""
    shown = world.world()
    case = replace(world.jobs[0].case(shown), **more)
    case = replace(case, profile=case.profile.model_copy(update=profile or {}))
    (found,) = plan([case], shown, world.nodes(), [], NOW, rule or Rule()).verdicts
    return found


def test_a_job_that_is_packed() -> None:
    found = verdict(Imagined(hosts_at("ab", 4), jobs=[cg()]))
    assert found.text == (
        f"network-bound: {LINKS}; a step would take 0.22 of the time, 471.0 s less in the 600 s that are left "
        "(imagined); 2 moves cost 2.2 s: that pays after 3 s"
    )
    assert (found.cluster, found.kind, found.before) == ("cg", Kind.NETWORK, 600.0)
    step, stands = 0.215035, 0.2 + 0.2 + 64 * MIB / (0.9 * 125e6)
    wire = 2 * 64 * MIB / (0.9 * 125e6)
    assert (found.step, found.link, found.busiest) == pytest.approx((step, 0.792881, 0.199203), rel=1e-4)
    assert found.cost == pytest.approx(2 * stands + 0.2 * wire)
    assert found.after == pytest.approx(600 * found.step + found.cost)
    (first, second) = found.moves
    assert (first.node, first.source, first.destination) == ("cg-2", "b1", "a3")
    assert (second.node, second.source, second.destination) == ("cg-3", "b2", "a4")
    why = "together at a: links take 79% of the job's time now (319 answers/s, 0.32 MB/s), 0% afterwards"
    assert first.reason == second.reason == why
    assert (first.bytes, first.seconds, first.downtime) == (64 * MIB, 1.0, pytest.approx(stands))


def test_a_move_takes_as_long_as_its_link_needs() -> None:
    found = verdict(Imagined(hosts_at("ab", 4), bandwidth="100Mbit/s", jobs=[cg()]))
    assert found.moves[0].seconds == pytest.approx(64 * MIB / (0.9 * 12.5e6))
    assert found.text.endswith("2 moves cost 15.1 s: that pays after 19 s")


def test_a_move_that_becomes_worth_it_with_another() -> None:
    fast, slow = hosts_at("a", 1), [host.model_copy(update={"speed": 0.5}) for host in hosts_at("b", 1)]
    work, pairs = {"x-0": 0.001, "x-1": 0.01}, {(0, 1): 3, (1, 0): 3}
    found = verdict(Imagined(fast + slow, "1ms", jobs=[Job(nodes_on("x", ["b1", "b1"], 0.5), work, pairs)]))
    assert [move.reason for move in found.moves] == [
        "together at a: links would take 15% of today's step, 0% together",
        "it computes 99% of its time, and the others wait for it: a1 gives it 2 x the CPU time of b1",
    ]


def test_a_job_for_which_there_is_no_room() -> None:
    idle = nodes_on("other", ["a3", "a4", "b3"])
    found = verdict(Imagined(hosts_at("ab", 4), jobs=[cg()], idle=idle))
    rooms = "site {} has room for {} of the 2 nodes that are elsewhere"
    assert found.text == f"network-bound: {LINKS}; {rooms.format('a', 0)}; {rooms.format('b', 1)}"
    assert (found.after, found.cost, found.step, found.moves) == (600.0, 0.0, 1.0, ())


def test_a_job_whose_nodes_are_pinned() -> None:
    found = verdict(Imagined(hosts_at("ab", 4), jobs=[cg(pinned=frozenset({"cg-0", "cg-3"}))]))
    assert found.text == f"network-bound: {LINKS}; cg-3 is pinned and not at a; cg-0 is pinned and not at b"


def test_hosts_that_would_refuse_a_node() -> None:
    """Why, of the first of them, as there may be hundreds."""
    world = Imagined(hosts_at("ab", 4), jobs=[cg()])
    refused = {(f"cg-{n}", f"{site}{host}"): f"no {site}{host}" for n in range(4) for site in "ab" for host in range(5)}
    text = "site {} has room for 0 of the 2 nodes that are elsewhere; no {}1"
    found = judged(world, refused=refused)
    assert found.text == f"network-bound: {LINKS}; {text.format('a', 'a')}; {text.format('b', 'b')}"


def test_a_job_that_computes() -> None:
    found = verdict(Imagined(hosts_at("ab", 4), jobs=[Job(nodes_on("ep", APART), work=1.0)]))
    assert found.text == f"CPU-bound: {ALONE}, ep-3 computes 100%; no host with room would make it faster"


def test_a_node_on_a_crowded_host() -> None:
    found = verdict(Imagined(hosts_at("a", 4), foreign={"a2": 0.6}, jobs=[Job(nodes_on("x", ["a1", "a2"]))]))
    assert found.text == (
        f"CPU-bound: {ALONE}, x-1 computes 100%; a step would take 0.40 of the time, 360.0 s less in the 600 s that "
        "are left (imagined); 1 moves cost 0.2 s: that pays after 0 s"
    )
    (move,) = found.moves
    assert move.reason == f"{LOADED}: a3 gives it 2.5 x the CPU time of a2"
    assert (move.seconds, move.downtime) == (1.0, 0.2) and found.cost == pytest.approx(0.2 + 0.2 * 1.0 / 4)


@pytest.mark.parametrize(
    ("job", "end"),
    [
        (cg(remaining=1), "2 moves cost 2.2 s: the gain must be 1.5 times the cost"),
        (
            cg(moved={"cg-1": NOW - 10, "cg-0": NOW - 20, "cg-2": NOW - 60}),
            "2 moves cost 2.2 s: its nodes moved 10 s ago; after a move they stay for 60 s, so ask again in 50 s",
        ),
    ],
)
def test_a_plan_that_is_rejected_says_why(job: Job, end: str) -> None:
    found = verdict(Imagined(hosts_at("ab", 4), jobs=[job]))
    assert found.text.endswith(f"s that are left (imagined); {end}")
    assert (found.moves, found.cost, found.after) == ((), 0.0, found.before) and found.step < 0.22


def gains(left: float) -> Imagined:
    """A job whose step would take this part of the time on a free host."""
    return Imagined(hosts_at("a", 4), foreign={"a2": 1 - left}, jobs=[Job(nodes_on("x", ["a1", "a2"]))])


def test_thresholds_of_the_rule() -> None:
    """A gain of exactly the least is enough, as is one of exactly `margin` times the cost of 0.25 s."""
    assert verdict(gains(0.9)).text.endswith("s: that is less than the 20% from which on nodes are moved")
    assert verdict(gains(0.75), Rule(gain=0.25)).moves and not verdict(gains(0.75), Rule(gain=0.26)).moves
    worth = gains(0.5)
    worth.jobs[0].remaining = 1.0  # half a second less
    assert verdict(worth, Rule(margin=2.0)).moves and not verdict(worth, Rule(margin=2.01)).moves


def test_cool_down_and_hold_end_on_time() -> None:
    job = cg(moved={"cg-0": NOW - 60})
    world = Imagined(hosts_at("ab", 4), jobs=[job])
    assert verdict(world).moves and not verdict(world, Rule(cooldown=60.5)).moves
    job.moved["cg-0"] = NOW
    assert "its nodes moved 0 s ago" in verdict(world).text
    job.moved = {}
    job.left = {(f"cg-{n}", f"a{host}"): NOW - 600 for n in (2, 3) for host in range(1, 5)}
    assert [move.destination for move in verdict(world).moves] == ["a3", "a4"]
    assert {move.destination[0] for move in verdict(world, Rule(hold=601)).moves} == {"b"}


def test_a_node_that_would_go_back_is_named_with_how_long_it_stays() -> None:
    """It was moved by hand from a free host to a worse one, which balancing reverts only later."""
    job = Job(nodes_on("x", ["a1", "a2"]), left={("x-1", "a3"): NOW - 90})
    world = Imagined(hosts_at("a", 3), foreign={"a2": 0.6}, jobs=[job])
    text = "no host with room would make it faster; x-1 left a3 90 s ago and does not return for another 510 s"
    assert verdict(world).text.endswith(text) and not verdict(world).moves
    assert verdict(world, Rule(hold=90)).moves
    job.left = {("x-0", "a3"): NOW - 90}  # x-1 may go there
    assert verdict(world).moves


def test_an_idle_cluster() -> None:
    world = Imagined(hosts_at("ab", 4), jobs=[cg()])
    idle = Verdict(cluster="cg", kind=Kind.IDLE, text="no job runs")
    assert judged(world, profile={"jobs": ()}) == idle
    loads = tuple(load.model_copy(update={"ranks": 0}) for load in world.jobs[0].case(world.world()).profile.nodes)
    assert judged(world, profile={"nodes": loads}) == idle


@pytest.mark.parametrize(("uncounted", "why"), [("no bridge", " (no bridge)"), ("", "")])
def test_flows_that_were_not_counted(uncounted: str, why: str) -> None:
    found = judged(Imagined(hosts_at("ab", 4), jobs=[cg()]), profile={"flows": None, "uncounted": uncounted})
    assert found.kind is Kind.UNKNOWN and found.text == (
        f"unknown: the time that links take is unknown{why}, so no node moves over a link, cg-3 computes 20%; "
        "no host with room would make it faster"
    )


def test_kinds() -> None:
    """Bound by the largest part: links from `network` on, CPUs from a half on."""
    world = Imagined(hosts_at("a", 2), jobs=[Job(nodes_on("x", ["a1", "a2"]))])

    def kind(computing: float) -> Kind:
        nodes = world.jobs[0].case(world.world()).profile.nodes
        loads = tuple(load.model_copy(update={"computing": computing, "waiting": 0.1}) for load in nodes)
        return judged(world, profile={"nodes": loads}).kind

    assert [kind(share) for share in (0.49, 0.5, 0.51)] == [Kind.WAITING, Kind.CPU, Kind.CPU]
    assert judged(world, profile={"flows": None}).kind is Kind.CPU, "at one site no link takes anything"
    packed = verdict(Imagined(hosts_at("ab", 4), jobs=[cg()]))
    assert verdict(Imagined(hosts_at("ab", 4), jobs=[cg()]), Rule(network=packed.link)).kind is Kind.NETWORK
    assert verdict(Imagined(hosts_at("ab", 4), jobs=[cg()]), Rule(network=0.8)).kind is Kind.WAITING


def test_what_waits_to_be_confirmed() -> None:
    found = verdict(Imagined(hosts_at("ab", 4), jobs=[cg()]))
    site = {f"{name}{number}": name for name in "ab" for number in range(1, 5)}
    waits = confirmed(found, found.model_copy(update={"moves": found.moves[:1]}), site)
    assert waits.text == f"waits for the next measurement to confirm it: {found.text}"
    assert (waits.moves, waits.cost, waits.after) == ((), 0.0, 600.0)
    assert (waits.step, waits.link, waits.kind) == (found.step, found.link, found.kind)
    still = found.model_copy(update={"moves": ()})
    assert confirmed(still, None, site) is still and confirmed(still, found, site) is still


def slow_and_fast(speed: float) -> Imagined:
    hosts = [*hosts_at("a", 1, speed=1.0), Host(name="a2", site="a", cores=1, memory=1024 * MIB, speed=speed)]
    return Imagined(hosts, jobs=[Job(nodes_on("x", ["a1"]))])


def test_a_host_must_be_a_twentieth_faster() -> None:
    rule = Rule(gain=0.0)
    assert verdict(slow_and_fast(1.05), rule).moves and not verdict(slow_and_fast(1.04), rule).moves


@pytest.mark.parametrize(("speed", "chosen"), [(0.83, "a2"), (0.85, "b1")])
def test_its_own_site_is_preferred_to_a_host_that_is_hardly_faster(speed: float, chosen: str) -> None:
    """Of two nodes that are equally slow: the move of one alone shortens no step."""
    hosts = [
        Host(name=name, site=name[0], cores=2, memory=1024 * MIB, speed=speed)
        for name, speed in (("a1", 0.4), ("a2", 0.8), ("b1", speed))
    ]
    found = verdict(Imagined(hosts, "0ms", jobs=[Job(nodes_on("x", ["a1", "a1"]))]))
    assert [move.destination for move in found.moves] == [chosen, chosen]


def test_costs_are_those_of_each_node() -> None:
    """The node that moves has its own prediction."""
    world = Imagined(hosts_at("a", 4), foreign={"a2": 0.6}, jobs=[Job(nodes_on("x", ["a1", "a2"]))])
    costs = {"x-0": COST, "x-1": COST.model_copy(update={"bytes": 7, "seconds": 3.0, "downtime": 0.5})}
    (move,) = judged(world, costs=costs).moves
    assert (move.node, move.bytes, move.seconds, move.downtime) == ("x-1", 7, 3.0, 0.5)


def test_the_largest_gain_is_placed_first_and_the_others_get_what_is_left() -> None:
    """x gains more than y; both want a3, so y is judged again, and no host is left for it."""
    jobs = [
        Job(nodes_on("y", ["a2"]), remaining=100.0),
        Job(nodes_on("x", ["a1"]), remaining=600.0),
    ]
    world = Imagined(hosts_at("a", 3), foreign={"a1": 0.6, "a2": 0.6}, jobs=jobs)
    later, first = world.plan().verdicts
    assert (later.cluster, first.cluster) == ("y", "x")
    assert [move.destination for move in first.moves] == ["a3"] and later.moves == ()
    assert later.text.endswith("y-0 computes 100%; no host with room would make it faster")


def test_busy_nodes_of_other_clusters_share_a_host() -> None:
    """a2 has two cores; x-0 takes one of them away from y."""
    hosts = [*hosts_at("a", 1), *[h.model_copy(update={"name": "a2", "cores": 2.0}) for h in hosts_at("a", 1)]]
    crowded = Job(nodes_on("x", ["a2"], cpus=1.0)), Job(nodes_on("y", ["a1"], cpus=1.0))
    world = Imagined(hosts, foreign={"a1": 0.6, "a2": 0.5}, jobs=list(crowded))
    still, found = world.plan().verdicts
    assert still.moves == () and [(m.node, m.destination) for m in found.moves] == [("y-0", "a2")]
    assert found.moves[0].reason == f"{LOADED}: a2 gives it 1.9 x the CPU time of a1", "1.5 CPUs for two nodes"
    alone = Imagined(hosts, foreign={"a1": 0.6, "a2": 0.5}, jobs=[crowded[1]], idle=crowded[0].nodes)
    assert verdict(alone).moves[0].reason == f"{LOADED}: a2 gives it 2.5 x the CPU time of a1", "idle nodes take none"


def site_a(**hosts: tuple[float, float]) -> list[Host]:
    """Hosts by name, with cores and speed; at b there are two ordinary ones."""
    return [
        Host(name=name, site=name[0], cores=cores, memory=1024 * MIB, speed=speed)
        for name, (cores, speed) in {**hosts, "b1": (1.0, 1.0), "b2": (1.0, 1.0)}.items()
    ]


def packed(hosts: list[Host], *cpus: float) -> dict[str, str]:
    """Where the nodes x-1, x-2 at b with these CPUs are packed; x-0 is at a9 and stays."""
    nodes = [
        node.model_copy(update={"cpus": size})
        for node, size in zip(nodes_on("x", ["a9", "b1", "b2"]), (1.0, *cpus), strict=True)
    ]
    work = {"x-0": 0.01, "x-1": 0.0001, "x-2": 0.0001}
    job = Job(tuple(nodes), work=work, pairs=ring(3), pinned=frozenset({"x-0"}))
    return {move.node: move.destination for move in verdict(Imagined(hosts, jobs=[job])).moves}


def test_the_largest_node_is_packed_first() -> None:
    """Else the small one would take the only host that is large enough for the other."""
    assert packed(site_a(a1=(1.0, 1.0), a2=(0.5, 1.0), a9=(1.0, 1.0)), 0.5, 1.0) == {"x-1": "a2", "x-2": "a1"}


def test_nodes_are_packed_where_they_get_the_most() -> None:
    """A host with idle cores is as good for the second node as for the first."""
    assert packed(site_a(a1=(4.0, 0.5), a2=(4.0, 1.0), a9=(1.0, 1.0)), 1.0, 1.0) == {"x-1": "a2", "x-2": "a2"}
    assert set(packed(site_a(a1=(1.0, 1.0), a2=(1.0, 1.0), a9=(1.0, 1.0)), 1.0, 1.0).values()) == {"a1", "a2"}


@pytest.mark.parametrize(
    ("pinned", "why"),
    [({"x-0"}, "x-0 is pinned and not at b"), (set(), "no host with room would make it faster")],
)
def test_packing_that_would_make_it_slower(pinned: set[str], why: str) -> None:
    """Only slow hosts are free. A site where packing was possible is not named."""
    hosts = [host.model_copy(update={"speed": 0.01 if host.name[1] == "2" else 1.0}) for host in hosts_at("ab", 2)]
    job = Job(nodes_on("x", ["a1", "b1"]), work=0.05, pairs=ring(2), pinned=frozenset(pinned))
    found = verdict(Imagined(hosts, jobs=[job]))
    assert found.kind is Kind.NETWORK and found.text.endswith(f"x-1 computes 56%; {why}")


def test_a_job_that_computes_is_not_told_why_it_was_not_packed() -> None:
    job = Job(nodes_on("ep", APART), work=1.0, pinned=frozenset({"ep-0", "ep-3"}))
    assert verdict(Imagined(hosts_at("ab", 4), jobs=[job])).text.endswith("; no host with room would make it faster")


def crowded(**more: Any) -> Imagined:
    """x-1 gets two fifths of the CPU that it would get at the free host a3."""
    return Imagined(hosts_at("a", 3), foreign={"a2": 0.6}, jobs=[Job(nodes_on("x", ["a1", "a2"]), **more)])


def test_a_host_that_a_move_is_on_its_way_to_is_taken() -> None:
    assert [move.destination for move in verdict(crowded()).moves] == ["a3"]
    world = crowded()
    world.hosts += hosts_at("b", 1)
    world.idle = nodes_on("idle", ["b1"])
    fields = {"id": "m", "node": "idle-0", "cluster": "idle", "source": "b1", "destination": "a3", "created": NOW}
    world.under_way = (Move.model_validate({**fields, "phase": Phase.TRANSFER}),)
    assert verdict(world).moves == ()


def test_no_host_gets_more_nodes_than_the_file_allows() -> None:
    hosts = [host.model_copy(update={"cores": 2.0 if host.name == "a1" else 1.0}) for host in hosts_at("a", 2)]

    def moved(most: int | None) -> list[str]:
        world = Imagined(hosts, foreign={"a2": 0.6}, jobs=[Job(nodes_on("x", ["a1", "a2"]), most=most)])
        return [move.destination for move in verdict(world).moves]

    assert (moved(None), moved(2), moved(1)) == (["a1"], ["a1"], [])


def test_of_two_sites_the_one_whose_moves_cost_less_is_chosen() -> None:
    world = Imagined(hosts_at("ab", 4), jobs=[cg()])
    large = COST.model_copy(update={"bytes": 1024 * MIB})
    costs = {f"cg-{number}": COST if number < 2 else large for number in range(4)}
    assert [move.node for move in judged(world, costs=costs).moves] == ["cg-0", "cg-1"]
    costs = {f"cg-{number}": large if number < 2 else COST for number in range(4)}
    assert [move.node for move in judged(world, costs=costs).moves] == ["cg-2", "cg-3"]


def test_a_faster_host_at_another_site_is_worth_less_than_one_without_a_link() -> None:
    hosts = [
        Host(name=name, site=name[0], cores=1, memory=1024 * MIB, speed=speed)
        for name, speed in (("a1", 1.0), ("a2", 0.4), ("a3", 0.8), ("b1", 1.0))
    ]
    world = Imagined(hosts, jobs=[Job(nodes_on("x", ["a1", "a2"]), pairs=ring(2), pinned=frozenset({"x-0"}))])
    assert [move.destination for move in verdict(world).moves] == ["a3"]


def test_cpus_that_a_placed_cluster_leaves_and_takes_count_for_the_next() -> None:
    """l gains most and goes from a1 to a3; u, which stays, and s then share the CPUs that are left at either."""
    hosts = [
        Host(name=name, site="a", cores=cores, memory=1024 * MIB)
        for name, cores in (("a1", 4.0), ("a2", 1.0), ("a3", 4.0))
    ]
    foreign = {"a1": 3.0, "a2": 0.8, "a3": 2.0}  # of a1 one core is left, of a2 a fifth, of a3 two

    def reason(target: str) -> str:
        jobs = [
            Job(nodes_on("u", ["a1", "a1", "a3"], cpus=0.25), pinned=frozenset({"u-0", "u-1", "u-2"})),
            Job(nodes_on("s", ["a2"]), remaining=100.0, allowed=frozenset({"a2", target})),
            Job(nodes_on("l", ["a1"]), allowed=frozenset({"a1", "a3"})),
        ]
        _, (move,), (first,) = (found.moves for found in Imagined(hosts, foreign=foreign, jobs=jobs).plan().verdicts)
        assert (first.node, first.destination, move.destination) == ("l-0", "a3", target)
        return move.reason

    assert reason("a1").endswith("a1 gives it 3.3 x the CPU time of a2"), "1 core for s and two quarters"
    assert reason("a3").endswith("a3 gives it 4.4 x the CPU time of a2"), "2 cores for s, l and a quarter"


def test_room_that_a_placed_cluster_takes_is_added_to_what_was_taken() -> None:
    hosts = [
        host.model_copy(update={"cores": 4.0, "memory": (128 if host.name == "a3" else 1024) * MIB})
        for host in hosts_at("a", 3)
    ]
    jobs = [Job(nodes_on("l", ["a1"])), Job(nodes_on("s", ["a2"]), remaining=100.0)]
    world = Imagined(hosts, foreign={"a1": 3.6, "a2": 3.6}, jobs=jobs, idle=nodes_on("idle", ["a3"]))
    assert [(move.node, move.destination) for move in world.plan().moves] == [("l-0", "a3")]
