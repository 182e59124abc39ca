"""The nodes on which ranks run, and refused layouts."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wherry.base.errors import Code, Refused
from wherry.job.rank_map import is_in_blocks, node_slots, nodes_of, rank_map
from wherry.model.job_request import Layout
from wherry.model.records import Node


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
