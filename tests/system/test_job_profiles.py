"""`wherry job profile`: activity of ranks in MPI, under both MPIs, before and after a move."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from realworld import RealInstance, eventually, ring_program

from wherry.job import ranks

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root")
RANKS = 4


@contextmanager
def job(four: RealInstance, flavour: str, *words: str) -> Iterator[str]:
    """The id of a ring that runs for long, and ends with the block."""
    program = ring_program(flavour, four.directory)
    options = ["--seconds", "600", "--memory", "4", "--size", "16384", "--pause", "5"]
    started = four("run", "four", "-n", str(RANKS), *words, "--detach", "--", program, *options)
    assert started.returncode == 0, started.stderr
    id = started.stdout.strip()
    try:
        yield id
    finally:
        assert four("job", "cancel", id).returncode == 0


def measured(four: RealInstance, id: str) -> dict[str, Any]:
    return four.json("job", "profile", id, "--seconds", "1s")


def check(found: dict[str, Any], where: dict[int, str]) -> None:
    """The work of a ring: messages of 16 KiB to the next rank, and now and then a collective."""
    assert found["schema"] == "wherry/mpi-profile/1" and not found["unseen"]
    assert {rank["rank"]: rank["node"] for rank in found["ranks"]} == where
    for rank in found["ranks"]:
        assert rank["calls"] > 10
        assert sum(rank[part] for part in ("computing", "waiting", "transferring")) == pytest.approx(1, abs=0.01)
    assert {(flow["source"], flow["target"]) for flow in found["flows"]} == {(r, (r + 1) % RANKS) for r in range(RANKS)}
    assert all(flow["bytes"] == pytest.approx(flow["messages"] * 16384) for flow in found["flows"])
    assert {"Allreduce", "Bcast"} & {use["operation"] for use in found["operations"]}


@pytest.mark.parametrize("flavour", ["openmpi", "mpich"])
def test_a_running_job_is_seen_from_inside(four: RealInstance, flavour: str) -> None:
    where = {rank: f"four-{rank}" for rank in range(RANKS)}
    with job(four, flavour) as id:
        assert eventually(lambda: len(measured(four, id)["ranks"]), RANKS) == RANKS
        check(measured(four, id), where)
        host = four.hosts_of("four")["four-1"]
        four.move("four-1", next(other for other in four.hosts() if other != host))
        check(measured(four, id), where)
        (verdict,) = four.json("balance", "four", "--seconds", "1s")["plan"]["verdicts"]
        assert verdict["source"] == "inside MPI"
        shown = four("job", "profile", id, "--seconds", "500ms").stdout
        assert "From (down) to (across)" in shown and "COMPUTES" in shown
        outside = four.json("job", "profile", id, "--seconds", "500ms", "--outside")
        assert outside["schema"] == "wherry/profile/1" and outside["nodes"]


def test_a_plain_job_is_measured_from_outside(four: RealInstance) -> None:
    with job(four, "openmpi", "--plain") as id:
        found = measured(four, id)
        assert found["schema"] == "wherry/profile/1" and found["jobs"] == [id]
        assert four.json("job", "show", id)["uncounted"] == "it was run with --plain"
        (verdict,) = four.json("balance", "four", "--seconds", "500ms")["plan"]["verdicts"]
        assert verdict["source"] == "from outside"
        found = ranks.here("", [int(path.name) for path in Path("/proc").glob("[0-9]*")], {})
        maps = [Path(f"/proc/{pid}/maps").read_text() for (_, pid), times in found.items() if times.job == id]
        assert len(maps) >= RANKS and not any("libwherry-mpi.so" in text for text in maps)


def test_a_program_that_calls_mpi_by_addresses_is_left_alone_and_the_reason_is_kept(four: RealInstance) -> None:
    """It loads its MPI late, for itself alone (ctypes)."""
    path = four.directory / "late.py"
    path.write_text(
        "import ctypes, time\n"
        "mpi = ctypes.CDLL('libmpi.so.40')\n"
        "mpi.MPI_Init(None, None)\n"
        "print('begun', flush=True)\n"
        "time.sleep(600)\n"
    )
    started = four("run", "four", "-n", "2", "--mpi", "openmpi", "--detach", "--", "/usr/bin/python3", str(path))
    assert started.returncode == 0, started.stderr
    id = started.stdout.strip()
    assert eventually(lambda: "dlopen, dlsym" in four.json("job", "show", id)["uncounted"], True)
    events = [event for event in four.json("event", "list")["events"] if event["kind"] == "job.uncounted"]
    assert [event["target"] for event in events].count(id) == 1
    assert four("logs", "--job", id).stdout.split() == ["begun", "begun"]
    assert measured(four, id)["schema"] == "wherry/profile/1"
    assert four("job", "cancel", id).returncode == 0
