"""The nodes on which ranks run, and refused layouts."""

from __future__ import annotations

import os
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wherry.base.errors import Code, Refused
from wherry.fabric.cgroup import TASKS
from wherry.job.oversubscription import RANK_MEMORY, RANK_TASKS, require_room, warning
from wherry.job.rank_map import is_in_blocks, node_slots, nodes_of, rank_map
from wherry.model.job_request import Layout
from wherry.model.records import Node
from wherry.node import rank_sites
from wherry.node.rank_sites import RankSites, site_numbers, site_runs


def nodes(*cpus: float) -> tuple[Node, ...]:
    return tuple(
        Node(
            name=f"n-{i}", cluster="n", index=i, host="a1", address=f"10.77.1.{i + 1}", mac="", cpus=cpu, memory=1 << 28
        )
        for i, cpu in enumerate(cpus)
    )


def places(map_: tuple[Node, ...]) -> str:
    return "".join(str(node.index) for node in map_)


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        (Layout(), "0001122"),
        (Layout(map_by="slot"), "0011120"),
        (Layout(map_by="node"), "0120120"),
        (Layout(map_by="node", rank_by="slot"), "0001122"),
        (Layout(rank_by="node"), "0120120"),
        (Layout(map_by="ppr:3:node"), "0001112"),
        (Layout(map_by="ppr:3:node", rank_by="node"), "0120101"),
        (Layout(hosts=("n-2", "n-0")), "2222000"),
        (Layout(hosts=("n-2", "n-0"), map_by="node"), "2020202"),
        (Layout(rankfile=("n-1", "n-0", "n-1", "n-1", "n-2", "n-2", "n-0", "n-0")), "1011220"),
    ],
)
def test_a_map(layout: Layout, expected: str) -> None:
    found = rank_map(nodes(2, 3, 1), 7, layout)
    if layout.map_by == "slot":
        assert Counter(places(found)) == Counter(expected), "one more than there are CPUs"
    else:
        assert places(found) == expected


@given(
    st.lists(st.sampled_from([0.5, 1, 2, 7]), min_size=1, max_size=9),
    st.integers(1, 60),
    st.sampled_from([None, "slot", "node", "ppr:60:node"]),
    st.sampled_from([None, "slot", "node"]),
)
def test_every_rank_has_a_node(cpus: list[float], ranks: int, map_by: str | None, rank_by: str | None) -> None:
    found = rank_map(nodes(*cpus), ranks, Layout.model_validate({"map_by": map_by, "rank_by": rank_by}))
    assert len(found) == ranks == sum(seat.slots for seat in node_slots(found))
    assert {node.name for node in nodes_of(found)} == {seat.name for seat in node_slots(found)}
    assert is_in_blocks(found) == (len(nodes_of(found)) == len(node_slots(found)))
    if map_by == "slot" and ranks <= sum(max(1, int(cpu)) for cpu in cpus):
        assert all(count <= max(1, int(nodes(*cpus)[i].cpus)) for i, count in Counter(n.index for n in found).items())


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        (Layout(map_by="ppr:2:node"), "7 ranks do not fit on 3 nodes with 2 each"),
        (Layout(hosts=("n-0", "n_1")), "cluster n has no node 'n_1'; did you mean 'n-1'"),
        (Layout(rankfile=("n-0", "n-1")), "has a node for 2 of 7 ranks"),
        (Layout(rankfile=("m",) * 7), "no node 'm'"),
    ],
)
def test_what_is_not_there_is_refused_by_name(layout: Layout, said: str) -> None:
    with pytest.raises(Refused, match=said) as refused:
        rank_map(nodes(1, 1, 1), 7, layout)
    assert refused.value.code is Code.USAGE


# How many ranks nodes can have.


def alike(number: int, cpus: float = 1, memory: int = 512 << 20) -> list[Node]:
    return [
        Node(
            name=f"c-{index}", cluster="c", index=index, host="a1", address=f"10.77.1.{index + 1}",
            mac=f"02:77:0a:4d:01:{index:02x}", kind="container", cpus=cpus, memory=memory,
        )
        for index in range(number)
    ]  # fmt: skip


def room_for(nodes: list[Node], ranks: int) -> None:
    require_room(nodes, rank_map(nodes, ranks, Layout()))


def test_a_thousand_ranks_on_four_small_nodes_are_refused_with_the_number_that_fits() -> None:
    with pytest.raises(Refused) as refused:
        room_for(alike(4), 1000)
    assert refused.value.code is Code.NO_CAPACITY
    assert "250 of them would run on c-0, which has 512.0 MiB: 204 ranks at most" in refused.value.why
    assert "wherry run c -n 816 -- PROGRAM" in refused.value.next


def test_processes_are_a_limit_too() -> None:
    with pytest.raises(Refused, match="do not fit") as refused:
        room_for(alike(1, memory=64 << 30), TASKS // RANK_TASKS + 1)
    assert f"{TASKS} processes" in refused.value.why


@given(st.integers(1, 6), st.integers(1, 40), st.integers(1, 300))
def test_what_is_refused_cannot_fit(number: int, room: int, ranks: int) -> None:
    """Ranks are refused exactly when the fullest node has more than its memory holds."""
    try:
        room_for(alike(number, memory=room * RANK_MEMORY), ranks)
        fits = True
    except Refused:
        fits = False
    assert fits == (-(-ranks // number) <= room)


def test_oversubscription_is_warned_of() -> None:
    assert warning(alike(2), 8) == "" == warning(alike(1, cpus=0.25), 4)
    assert "9 ranks share 2 CPUs" in warning(alike(2), 9)


# The map of ranks to sites in words, and as ranks read it.


@given(st.lists(st.sampled_from(["north", "south", "west"]), min_size=1, max_size=50))
def test_runs_say_which_ranks_are_together(sites: list[str]) -> None:
    numbers = site_numbers(site_runs(sites))
    assert len(numbers) == len(sites)
    assert len(set(zip(numbers, sites, strict=True))) == len(set(sites)) == len(set(numbers))
    assert site_runs(numbers) == site_runs(sites)


def test_a_map_as_the_library_reads_it() -> None:
    place = RankSites(3, (0, 1, 258)).place()
    assert place[:8] == bytes([3, 0, 0, 0, 0, 0, 0, 0]) and place[16:] == bytes([0, 0, 1, 0, 2, 1])
    assert len({RankSites(epoch, (0, site)).place()[8:16] for epoch in range(8) for site in range(8)}) == 64


def test_a_process_that_is_no_rank_is_not_written_to() -> None:
    for pid in (os.getpid(), 2**22 + 1):
        assert rank_sites.heard(pid, 2) is None
        assert rank_sites.tell([pid], RankSites(1, (0, 1))) == (0, 0)
        assert rank_sites.used(pid, 2) == 0
