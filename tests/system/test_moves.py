"""Moves of nodes of running jobs through the command line: many, several at once, off a host and back, predicted."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest
from realworld import SECONDS, World, world

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root")

MOVES = 20
PHASES = ["prepare", "rounds", "freeze", "transfer", "restore", "commit", "thaw", "done"]


@pytest.fixture(scope="module")
def four() -> Iterator[World]:
    """A cluster of four nodes on the embedded fabric, one on each host."""
    with world("tmov") as made:
        made.up("four", 4)
        yield made


def other(host: str) -> str:
    """A host at the other site."""
    return {"a": "b", "b": "a"}[host[0]] + host[1]


def assert_whole(record: dict[str, Any], node: str, source: str, destination: str) -> None:
    """A record that tells where the node went and what that cost."""
    assert (record["node"], record["source"], record["destination"]) == (node, source, destination)
    assert record["phase"] == "done" and record["error"] is None
    assert list(record["phases"]) == PHASES
    assert record["bytes"] > 0
    assert 0 < record["downtime"] <= record["total"]
    assert record["downtime_peer"] is None or record["downtime_peer"] > record["downtime"] / 2
    assert record["predicted"]["bytes"] > 0


@pytest.mark.parametrize("flavour", ["openmpi", "mpich"])
def test_nodes_move_back_and_forth_under_a_job(four: World, flavour: str) -> None:
    """Every node in turn, that with rank 0 too; after each move there is one copy, at the right host, and no more."""
    before = four.fabric()

    def back_and_forth() -> None:
        for node in islice(cycle(["four-0", "four-2", "four-1", "four-3"]), MOVES):
            source = four.hosts_of("four")[node]
            assert_whole(four.move(node, other(source)), node, source, other(source))
            assert four.assert_one_copy("four")[node] == other(source)

    four.under_a_ring("four", flavour, back_and_forth)
    assert four.fabric() == before


@pytest.mark.parametrize("flavour", ["openmpi", "mpich"])
def test_all_nodes_but_one_move_at_once(four: World, flavour: str) -> None:
    before = four.fabric()

    def all_but_one() -> None:
        where = four.hosts_of("four")
        wanted = {node: other(host) for node, host in where.items() if node != "four-1"}
        clients = {node: four.start("move", node, "--to", host, "-o", "json") for node, host in wanted.items()}
        for node, client in clients.items():
            out, err = client.communicate(timeout=SECONDS)
            assert client.returncode == 0, err
            assert_whole(json.loads(out), node, where[node], wanted[node])
        assert four.assert_one_copy("four") == where | wanted

    four.under_a_ring("four", flavour, all_but_one)
    assert four.fabric() == before


def test_a_host_is_drained_and_restored_under_a_job(four: World) -> None:
    def drain_and_restore() -> None:
        before = four.hosts_of("four")
        host = before["four-0"]
        there = {node for node, where in before.items() if where == host}
        moved = four.json("host", "drain", host)["moves"]
        assert {record["node"] for record in moved} == there
        assert host not in four.assert_one_copy("four").values()
        refused = four("move", "four-0", "--to", host)
        assert refused.returncode == 5 and "drained" in refused.stderr
        back = four.json("host", "restore", host)["moves"]
        assert {record["node"] for record in back} == there
        assert four.assert_one_copy("four") == before

    four.under_a_ring("four", "openmpi", drain_and_restore)


def test_dry_run_of_a_move_changes_nothing(four: World) -> None:
    """And it is of the size of what is then sent."""
    with four.ring("four", "openmpi", seconds=120, memory=16) as ring:
        where = four.assert_one_copy("four")
        seen = [four.json("node", "show", "four-3")["moves"], four.json("op", "list"), four.fabric()]
        predicted = four.json("move", "four-3", "--to", other(where["four-3"]), "--dry-run")
        assert predicted["bytes"] >= 16 << 20 and predicted["seconds"] >= predicted["downtime"] > 0
        assert four.assert_one_copy("four") == where
        assert [four.json("node", "show", "four-3")["moves"], four.json("op", "list"), four.fabric()] == seen
        done = four.move("four-3", other(where["four-3"]))
        assert done["bytes"] / 4 < predicted["bytes"] < done["bytes"] * 4
        assert ring.running()


def test_interrupted_move_rolls_back(four: World) -> None:
    """Ctrl-C while it is under way: either it was taken back, or it had been committed and is done."""
    with four.ring("four", "openmpi", seconds=8) as ring:
        where = four.hosts_of("four")
        client = four.start("move", "four-1", "--to", other(where["four-1"]))
        assert client.stderr and client.stderr.readline().startswith("four-1: prepare")
        client.send_signal(2)
        client.communicate(timeout=SECONDS)
        assert client.returncode in (0, 130)
        at = four.assert_one_copy("four")["four-1"]
        assert at == (where["four-1"] if client.returncode else other(where["four-1"]))
        ring.result()


@pytest.mark.parametrize("flavour", ["openmpi", "mpich"])
def test_ranks_keep_file_locks_while_they_are_moved(four: World, flavour: str) -> None:
    """A lock that is held goes along, and nobody gets it meanwhile; one of a moment, as MPI-IO takes, is waited for."""
    compiler = shutil.which(f"mpicc.{flavour}")
    if not compiler:
        pytest.skip(f"there is no compiler for {flavour}")
    source, program, stop = Path(__file__).with_name("locked.c"), four.directory / "locked", four.directory / "stop"
    subprocess.run(
        [compiler, "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", str(source), "-o", str(program)], check=True
    )
    stop.unlink(missing_ok=True)
    job = four.start("run", "four", "-n", "4", "--", str(program))
    try:
        assert job.stdout and job.stdout.readline() == "begun\n"
        for node in ("four-0", "four-1", "four-0"):
            source_host = four.hosts_of("four")[node]
            assert_whole(four.move(node, other(source_host)), node, source_host, other(source_host))
    finally:
        stop.touch()
        out, err = job.communicate(timeout=SECONDS)
    assert job.returncode == 0, (out, err)
    got, tried, wrong = map(int, out.split())
    assert got == 0 and tried > 100 and wrong == 0
