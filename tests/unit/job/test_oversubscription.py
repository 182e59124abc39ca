"""How many ranks nodes can have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wherry.base.errors import Code, Refused
from wherry.fabric.cgroup import TASKS
from wherry.job.oversubscription import RANK_MEMORY, RANK_TASKS, require_room, warning
from wherry.job.rank_map import rank_map
from wherry.model.job_request import Layout
from wherry.model.records import Node


def nodes(number: int, cpus: float = 1, memory: int = 512 << 20) -> list[Node]:
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
        room_for(nodes(4), 1000)
    assert refused.value.code is Code.NO_CAPACITY
    assert "250 of them would run on c-0, which has 512.0 MiB: 204 ranks at most" in refused.value.why
    assert "wherry run c -n 816 -- PROGRAM" in refused.value.next


def test_processes_are_a_limit_too() -> None:
    with pytest.raises(Refused, match="do not fit") as refused:
        room_for(nodes(1, memory=64 << 30), TASKS // RANK_TASKS + 1)
    assert f"{TASKS} processes" in refused.value.why


@given(st.integers(1, 6), st.integers(1, 40), st.integers(1, 300))
def test_what_is_refused_cannot_fit(number: int, room: int, ranks: int) -> None:
    """Ranks are refused exactly when the fullest node has more than its memory holds."""
    try:
        room_for(nodes(number, memory=room * RANK_MEMORY), ranks)
        fits = True
    except Refused:
        fits = False
    assert fits == (-(-ranks // number) <= room)


def test_oversubscription_is_warned_of() -> None:
    assert warning(nodes(2), 8) == "" == warning(nodes(1, cpus=0.25), 4)
    assert "9 ranks share 2 CPUs" in warning(nodes(2), 9)
