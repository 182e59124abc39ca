"""Moves under running jobs from the command line: repeated, concurrent, drain and restore, dry run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest
from realworld import SECONDS, RealInstance

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root")

ORDER = [f"four-{number}" for number in (0, 2, 0, 1, 3, 1, 2, 3)]
PHASES = ["prepare", "rounds", "freeze", "transfer", "restore", "commit", "thaw", "done"]


def other(host: str) -> str:
    """A host at the other site."""
    return {"a": "b", "b": "a"}[host[0]] + host[1]


def assert_whole(record: dict[str, Any], node: str, source: str, destination: str) -> None:
    """Asserts that a move's record has the hosts and costs."""
    assert (record["node"], record["source"], record["destination"]) == (node, source, destination)
    assert record["phase"] == "done" and record["error"] is None
    assert list(record["phases"]) == PHASES
    assert record["bytes"] > 0
    assert 0 < record["downtime"] <= record["total"]
    assert record["downtime_peer"] is None or record["downtime_peer"] > record["downtime"] / 2
    assert record["predicted"]["bytes"] > 0


@pytest.mark.parametrize("moves", [3, pytest.param(20, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("flavour", ["openmpi", "mpich"])
@pytest.mark.smoke
def test_nodes_move_back_and_forth_under_a_job(four: RealInstance, flavour: str, moves: int) -> None:
    """Also the node of rank 0; after each move there is exactly one copy, on the right host."""
    before = four.fabric()

    def back_and_forth() -> None:
        for node in islice(cycle(ORDER), moves):
            source = four.hosts_of("four")[node]
            assert_whole(four.move(node, other(source)), node, source, other(source))
            assert four.assert_one_copy("four")[node] == other(source)

    four.run_under_ring("four", flavour, back_and_forth)
    assert four.fabric() == before


@pytest.mark.parametrize("flavour", ["openmpi", "mpich"])
def test_all_nodes_but_one_move_at_once(four: RealInstance, flavour: str) -> None:
    before = four.fabric()

    def all_but_one() -> None:
        where = four.hosts_of("four")
        expected = {node: other(host) for node, host in where.items() if node != "four-1"}
        clients = {node: four.start("move", node, "--to", host, "-o", "json") for node, host in expected.items()}
        for node, client in clients.items():
            out, err = client.communicate(timeout=SECONDS)
            assert client.returncode == 0, err
            assert_whole(json.loads(out), node, where[node], expected[node])
        assert four.assert_one_copy("four") == where | expected

    four.run_under_ring("four", flavour, all_but_one)
    assert four.fabric() == before


def _frozen_at(move: dict[str, Any]) -> float:
    return float(move["created"]) + sum(move["phases"].get(name, 0) for name in ("prepare", "link wait", "rounds"))


def test_nodes_of_a_job_that_leave_a_host_stand_together(four: RealInstance) -> None:
    def drain() -> None:
        before = four.hosts_of("four")
        host = before["four-0"]
        four.json("move", "four-1", "--to", host)
        moved = four.json("host", "drain", host)["moves"]
        assert {record["node"] for record in moved} == {"four-0", "four-1"}
        stood = [(began := _frozen_at(record), began + record["downtime"]) for record in moved]
        assert max(began for began, _ in stood) < min(ended for _, ended in stood)
        four.json("host", "restore", host)
        four.json("move", "four-1", "--to", before["four-1"])
        assert four.assert_one_copy("four") == before

    four.run_under_ring("four", "openmpi", drain)


@pytest.mark.smoke
def test_a_host_is_drained_and_restored_under_a_job(four: RealInstance) -> None:
    def drain_and_restore() -> None:
        before = four.hosts_of("four")
        host = before["four-0"]
        nodes_on_host = {node for node, where in before.items() if where == host}
        moved = four.json("host", "drain", host)["moves"]
        assert {record["node"] for record in moved} == nodes_on_host
        assert host not in four.assert_one_copy("four").values()
        refused = four("move", "four-0", "--to", host)
        assert refused.returncode == 5 and "drained" in refused.stderr
        back = four.json("host", "restore", host)["moves"]
        assert {record["node"] for record in back} == nodes_on_host
        assert four.assert_one_copy("four") == before

    four.run_under_ring("four", "openmpi", drain_and_restore, pause=1)


def test_dry_run_of_a_move_changes_nothing(four: RealInstance) -> None:
    """The predicted size agrees with the size of the actual move."""
    with four.ring("four", "openmpi", seconds=120, memory=16) as ring:
        where = four.assert_one_copy("four")
        state = [four.json("node", "show", "four-3")["moves"], four.json("op", "list"), four.fabric()]
        predicted = four.json("move", "four-3", "--to", other(where["four-3"]), "--dry-run")
        assert predicted["bytes"] >= 16 << 20 and predicted["seconds"] >= predicted["downtime"] > 0
        assert four.assert_one_copy("four") == where
        assert [four.json("node", "show", "four-3")["moves"], four.json("op", "list"), four.fabric()] == state
        done = four.move("four-3", other(where["four-3"]))
        assert done["bytes"] / 4 < predicted["bytes"] < done["bytes"] * 4
        assert ring.running()


def test_interrupted_move_rolls_back(four: RealInstance) -> None:
    """Ctrl-C during a move: it is rolled back, or completed if it was committed, as the exit code shows."""
    with four.ring("four", "openmpi", pause=1) as ring:
        where = four.hosts_of("four")
        client = four.start("move", "four-1", "--to", other(where["four-1"]))
        assert client.stderr and client.stderr.readline().startswith("four-1: prepare")
        client.send_signal(2)
        client.communicate(timeout=SECONDS)
        at, move = four.assert_one_copy("four")["four-1"], four.json("node", "show", "four-1")["moves"][-1]
        done = move["phase"] == "done"
        assert at == (other(where["four-1"]) if done else where["four-1"])
        assert client.returncode == (0 if done else 130)
        ring.result()


def under_moves(four: RealInstance, flavour: str, name: str) -> list[int]:
    """The numbers that a program of this directory prints at its end, after moves. It prints a line when it has begun,
    and runs until there is a file `stop`."""
    compiler = shutil.which(f"mpicc.{flavour}")
    if not compiler:
        pytest.skip(f"there is no compiler for {flavour}")
    source, program, stop = Path(__file__).with_name(f"{name}.c"), four.directory / name, four.directory / "stop"
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
    return [int(word) for word in out.split()]


@pytest.mark.parametrize("flavour", ["openmpi", pytest.param("mpich", marks=pytest.mark.thorough)])
@pytest.mark.smoke
def test_ranks_keep_file_locks_while_they_are_moved(four: RealInstance, flavour: str) -> None:
    """A held lock moves with its rank and cannot be acquired meanwhile; short locks, as of MPI-IO, delay the freeze."""
    got, tried, wrong = under_moves(four, flavour, "locked")
    assert got == 0 and tried > 100 and wrong == 0


@pytest.mark.parametrize("flavour", ["openmpi", "mpich"])
def test_files_that_all_nodes_write_grow_while_they_are_moved(four: RealInstance, flavour: str) -> None:
    """By MPI-IO, each rank its blocks and at a common end."""
    for name in ("all", "lines"):
        (four.directory / name).unlink(missing_ok=True)
    turns, blocks, lines = under_moves(four, flavour, "grown")
    assert turns > 20 and blocks == 0 and lines == 0
