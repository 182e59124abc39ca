"""Two nodes of a full fabric change places under a running job, or stay where they are with the reason."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from realworld import RealInstance, eventually, real_instance

from wherry.base.errors import Code, Failed
from wherry.client import Client

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root")
FABRIC = """\
kind: fabric
version: 1
name: full
sites: [{name: a}, {name: b}]
hosts:
  - {name: a1, site: a, cores: 0.25, memory: 160MiB}
  - {name: b1, site: b, cores: 0.25, memory: 160MiB}
links:
  - {between: [a, b], latency: 2ms}
"""


@pytest.fixture(scope="module")
def full() -> Iterator[RealInstance]:
    """Two hosts, each with the one node that it has room for."""
    with real_instance("tswa", WHERRY_FAULTS="1") as created:
        before = created.all_resources()
        created.kept.fabric = FABRIC
        created.kept.make(lambda: make(created))
        yield created
        assert created("down", "--all", "--yes").returncode == 0
        assert eventually(created.all_resources, before) == before


def make(full: RealInstance) -> None:
    full.json("fabric", "up", full.file("full.yaml", FABRIC))
    full.up("two", 2)


@pytest.mark.parametrize("flavour", ["openmpi", "mpich"])
def test_nodes_change_places_while_their_job_runs(four: RealInstance, flavour: str) -> None:
    """Another cluster leaves no room at the hosts of either."""
    four.up("rest", 2, cpus=1.75, more="hosts: [a1, b1]\n")
    before = four.hosts_of("four")
    assert (before["four-0"], before["four-2"]) == ("a1", "b1")

    def swapped() -> None:
        alone = four("move", "four-0", "--to", "b1")
        assert alone.returncode == Code.NO_CAPACITY.exit_code, alone.stderr
        moves = four.json("swap", "four-0", "four-2")["moves"]
        assert {(move["node"], move["destination"]) for move in moves} == {("four-0", "b1"), ("four-2", "a1")}
        freezes = [(move["created"], move["ended"]) for move in moves]
        assert max(begin for begin, _ in freezes) < min(end for _, end in freezes), "they stand once, together"

    four.run_under_ring("four", flavour, swapped, pause=1)
    assert four.assert_one_copy("four") == {**before, "four-0": "b1", "four-2": "a1"}


@pytest.mark.parametrize("bandwidth", [None, "400Mbit/s"], ids=["together", "in turn"])
def test_the_first_node_is_moved_back_when_the_second_fails(full: RealInstance, bandwidth: str | None) -> None:
    """Over a link of limited bandwidth moves are made in turn, so the first one is over when the second fails."""
    before = full.hosts_of("two")
    if bandwidth:
        assert full("site", "link", "set", "a", "b", "--bandwidth", bandwidth).returncode == 0

    def fails() -> None:
        with Client(full.instance) as client, pytest.raises(Failed) as caught:
            client.swap("two-0", "two-1", fault="restore:fail")
        moved_back = "two-0 was moved back" in str(caught.value)
        assert moved_back or not bandwidth and "where they were" in str(caught.value), caught.value

    full.run_under_ring("two", "openmpi", fails, ranks=2)
    assert full.assert_one_copy("two") == before


def test_a_host_that_lacks_the_memory_for_both_refuses(full: RealInstance) -> None:
    before = full.hosts_of("two")

    def refused() -> None:
        done = full("swap", "two-0", "two-1")
        assert done.returncode == Code.NO_CAPACITY.exit_code and "of memory free" in done.stderr, done.stderr

    full.run_under_ring("two", "openmpi", refused, ranks=2, memory=64)
    assert full.assert_one_copy("two") == before


def test_what_makes_no_sense_is_refused(full: RealInstance) -> None:
    assert "with itself" in full("swap", "two-0", "two-0").stderr
    assert full("swap", "two-0", "two-9").returncode == Code.NOT_FOUND.exit_code


def test_two_jobs_that_are_apart_are_balanced_by_a_swap() -> None:
    hosts = "".join(
        f"  - {{name: {name}, site: {name[0]}, cores: 0.25, memory: 160MiB}}\n" for name in "a1 a2 b1 b2".split()
    )
    fabric = FABRIC.replace("2ms", "40ms")
    fabric = fabric[: fabric.index("  - {name")] + hosts + fabric[fabric.index("links") :]
    with real_instance("tswb") as four:
        four.json("fabric", "up", four.file("four.yaml", fabric))
        for name in "xy":
            four.up(name, 2, memory="128MiB", more="placement: spread\n")
        with four.ring("x", "openmpi", ranks=2) as one, four.ring("y", "openmpi", ranks=2) as other:
            assert one.running() and other.running()
            plan = four.json("balance", "--all", "--apply", "--remaining", "10m", "--seconds", "2s")["plan"]
            moves = [move for verdict in plan["verdicts"] for move in verdict["moves"]]
            assert len(moves) == 2 and {move["swap"] for move in moves} == {move["node"] for move in moves}, plan
            for ring in (one, other):
                ring.result()
        for name in "xy":
            assert len({host[0] for host in four.assert_one_copy(name).values()}) == 1
        assert four("down", "--all", "--yes").returncode == 0
