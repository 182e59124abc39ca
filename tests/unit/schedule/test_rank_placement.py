"""Where ranks go by the profile of their program, and by the speed that hosts leave to nodes."""

from __future__ import annotations

import random
import time
from collections import Counter

import pytest
from jobs_in_mind import Imagined, Job, hosts_at, nodes_on, ring

from wherry.model.balance import Kind
from wherry.model.profile import RankLoad
from wherry.model.program import GroupFlow, ProgramProfile, RankProfile
from wherry.model.records import ProgramKey
from wherry.model.spec.fabric import LinkSpec
from wherry.schedule import program_class
from wherry.schedule.program_class import program_profile
from wherry.schedule.rank_placement import Seat, by_profile, even
from wherry.schedule.routes import Routes

ROUTES = Routes([LinkSpec.model_validate({"between": ("a", "b"), "latency": "10ms"})])


def node_slots(hosts: str, speeds: dict[str, float] | None = None) -> list[Seat]:
    return [
        Seat(node=f"n-{i}", host=host, site=host[0], speed=(speeds or {}).get(host, 1.0), cpus=1.0)
        for i, host in enumerate(hosts.split())
    ]


def profiled(work: list[float], pairs: dict[tuple[int, int], float] | None = None) -> ProgramProfile:
    """A run of a rank on each node; `pairs` has messages per second."""
    key = ProgramKey(name="p", digest="d", arguments=(), ranks=len(work), uid=0)
    flows = [
        GroupFlow(source=one, target=other, messages=rate, bytes=100 * rate, turns=rate)
        for (first, second), rate in (pairs or {}).items()
        for one, other in ((first, second), (second, first))
    ]
    ranks = [
        RankProfile(rank=i, group=i, cpu=share, computing=share, waiting=1 - share, work=share)
        for i, share in enumerate(work)
    ]
    return ProgramProfile(
        key=key.key, program=key, kind=Kind.NETWORK, reason="", time=0, ran=2, seconds=2, runs=1, job="j",
        imbalance=1, ranks=tuple(ranks), flows=tuple(flows),
    )  # fmt: skip


def sites(chosen: list[Seat], places: tuple[int, ...]) -> str:
    return "".join(chosen[place].site for place in places)


def test_ranks_that_talk_come_to_one_site() -> None:
    chosen = node_slots("a1 a2 b1 b2")
    places, why = by_profile(chosen, profiled([0.3] * 4, {(0, 2): 200, (1, 3): 200}), ROUTES)
    assert sites(chosen, places) in ("abab", "baba") and "0 messages/s cross links instead of 800" in why


def test_of_more_nodes_than_ranks_those_of_one_site_are_taken() -> None:
    chosen = node_slots("a1 b1 b2 b3")
    places, _ = by_profile(chosen, profiled([0.3] * 3, {(0, 1): 200, (1, 2): 200}), ROUTES)
    assert sites(chosen, places) == "bbb" and len(set(places)) == 3


def test_the_loaded_rank_goes_to_the_faster_host() -> None:
    chosen = node_slots("a1 a2 a3", {"a1": 0.5, "a2": 0.5})
    places, why = by_profile(chosen, profiled([0.2, 0.9, 0.2]), ROUTES)
    assert places[1] == 2 and sorted(places) == [0, 1, 2] and "rank 1, which computes most, is on a3" in why


def test_what_gains_little_is_left_in_even_blocks() -> None:
    places, why = by_profile(node_slots("a1 a2 b1 b2"), profiled([0.9] * 4), ROUTES)
    assert places == (0, 1, 2, 3) and "as well as anything" in why


def test_ranks_that_are_not_shared_evenly_go_to_faster_hosts() -> None:
    assert even(node_slots("a1 a2 a3"), 5) == (0, 0, 1, 1, 2)
    assert even(node_slots("a1 a2 a3", {"a1": 0.5}), 5) == (0, 1, 1, 2, 2)
    assert even(node_slots("a1 a2 a3", {"a1": 0.5, "a2": 0.5}), 1) == (2,)


def test_more_ranks_than_can_be_searched_are_even_blocks_at_once() -> None:
    chosen, ranks = node_slots("a1 a2 b1 b2"), 2000
    begin = time.process_time()
    places, why = by_profile(chosen, profiled([0.5] * ranks, {(0, 1999): 200}), ROUTES)
    assert places == even(chosen, ranks) and "2000 ranks are too many to search" in why
    assert time.process_time() - begin < 1
    talking = {(i, j): 10.0 for i in range(600) for j in range(i + 1, 600, 97)}
    begin = time.process_time()
    assert len(by_profile(chosen, profiled([0.5] * 600, talking), ROUTES)[0]) == 600
    assert time.process_time() - begin < 10


def test_no_node_gets_more_than_the_fullest_of_even_blocks_and_it_is_quick() -> None:
    dice = random.Random(1)
    for ranks, nodes in ((16, 12), (40, 16), (200, 64), (7, 3)):
        pairs = {(i, dice.randrange(ranks)): dice.uniform(1, 300) for i in range(ranks)}
        pairs = {pair: rate for pair, rate in pairs.items() if pair[0] != pair[1]}
        chosen = node_slots(" ".join(f"{dice.choice('ab')}{i}" for i in range(nodes)), {"a1": 0.5})
        begin = time.process_time()
        places, _ = by_profile(chosen, profiled([dice.uniform(0.1, 0.9) for _ in range(ranks)], pairs), ROUTES)
        assert len(places) == ranks and max(Counter(places).values()) <= -(-ranks // nodes)
        assert time.process_time() - begin < 5


# The resource that limits a program, by a profile of one of its runs: the same wherever its nodes were.


KEY = ProgramKey(name="p", digest="", arguments=(), ranks=2, uid=0)


@pytest.mark.parametrize("hosts", [["a1", "b1"], ["a1", "a2"]], ids=["apart", "together"])
@pytest.mark.parametrize(
    ("job", "kind", "words"),
    [
        ({"pairs": ring(2, 6), "work": 0.001}, Kind.NETWORK, "ms apart"),
        ({"work": 0.5}, Kind.CPU, "exchange hardly anything"),
        ({"work": 1.0, "pairs": ring(2, 2)}, Kind.CPU, "are few"),
    ],
)
def test_its_kind_does_not_depend_on_where_it_ran(
    hosts: list[str], job: dict[str, object], kind: Kind, words: str
) -> None:
    nodes = nodes_on("x", hosts)
    world = Imagined(hosts_at("ab", 2)).world()
    measured = Job(nodes, **job).case(world).profile  # type: ignore[arg-type]
    ranks = tuple(
        RankLoad(rank=i, node=load.node, cpu=1, computing=load.computing, waiting=load.waiting)
        for i, load in enumerate(measured.nodes)
    )
    measured = measured.model_copy(update={"ranks": ranks})
    found = program_profile(KEY, "job", measured, nodes, world, None)
    assert found is not None and found.kind is kind, found
    assert words in found.reason or hosts[1] == "b1" and "links took" in found.reason
    again = program_profile(KEY, "next", measured, nodes, world, found)
    same = program_profile(KEY, "job", measured, nodes, world, found)
    assert again is not None and same is not None and (again.runs, same.runs) == (2, 1)
    short = measured.model_copy(update={"ranks": ranks[:1]})
    assert program_profile(KEY, "job", short, nodes, world, None) is None, "a rank was not seen"


def test_the_flows_with_most_turns_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, world = nodes_on("x", ["a1", "b1"]), Imagined(hosts_at("ab", 1)).world()
    measured = Job(nodes, pairs={(0, 1): 2, (1, 0): 6}).case(world).profile
    ranks = tuple(RankLoad(rank=i, node=node.name, cpu=1, computing=0.5, waiting=0.5) for i, node in enumerate(nodes))
    monkeypatch.setattr(program_class, "_FLOWS", 1)
    found = program_profile(KEY, "job", measured.model_copy(update={"ranks": ranks}), nodes, world, None)
    assert found is not None and [(flow.source, flow.target) for flow in found.flows or ()] == [(1, 0)]
