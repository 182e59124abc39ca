"""`wherry run --profile`, `wherry job profile`: what ranks do inside MPI, under both MPIs, before and after a move."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from realworld import RealInstance, eventually, real_instance, ring_program

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root")
RANKS = 4


@pytest.fixture(scope="module")
def wherry() -> Iterator[RealInstance]:
    """A cluster of two nodes."""
    with real_instance("tpro") as created:
        created.up("two", 2)
        yield created


@contextmanager
def job(wherry: RealInstance, flavour: str, *words: str) -> Iterator[str]:
    """The id of a ring that runs for long, and ends with the block."""
    program = ring_program(flavour, wherry.directory)
    options = ["--seconds", "600", "--memory", "4", "--size", "16384", "--pause", "5"]
    started = wherry("run", "two", "-n", str(RANKS), *words, "--detach", "--", program, *options)
    assert started.returncode == 0, started.stderr
    id = started.stdout.strip()
    try:
        yield id
    finally:
        assert wherry("job", "cancel", id).returncode == 0


def measured(wherry: RealInstance, id: str) -> dict[str, Any]:
    return wherry.json("job", "profile", id, "--seconds", "1s")


def check(found: dict[str, Any], where: dict[int, str]) -> None:
    """What a ring does: messages of 16 KiB to the next rank, and now and then a collective."""
    assert found["schema"] == "wherry/mpi-profile/1" and not found["unseen"]
    assert {rank["rank"]: rank["node"] for rank in found["ranks"]} == where
    for rank in found["ranks"]:
        assert rank["calls"] > 10
        assert sum(rank[part] for part in ("computing", "waiting", "transferring")) == pytest.approx(1, abs=0.01)
    assert {(flow["source"], flow["target"]) for flow in found["flows"]} == {(r, (r + 1) % RANKS) for r in range(RANKS)}
    assert all(flow["bytes"] == pytest.approx(flow["messages"] * 16384) for flow in found["flows"])
    assert {"Allreduce", "Bcast"} & {use["operation"] for use in found["operations"]}


@pytest.mark.parametrize("flavour", [pytest.param("openmpi", marks=pytest.mark.thorough), "mpich"])
@pytest.mark.smoke
def test_a_running_job_is_seen_from_inside(wherry: RealInstance, flavour: str) -> None:
    where = {0: "two-0", 1: "two-0", 2: "two-1", 3: "two-1"}
    with job(wherry, flavour, "--profile") as id:
        assert eventually(lambda: len(measured(wherry, id)["ranks"]), RANKS) == RANKS
        check(measured(wherry, id), where)
        host = wherry.hosts_of("two")["two-1"]
        wherry.move("two-1", next(other for other in wherry.hosts() if other != host))
        check(measured(wherry, id), where)
        shown = wherry("job", "profile", id, "--seconds", "500ms").stdout
        assert "From (down) to (across)" in shown and "COMPUTES" in shown
        outside = wherry.json("job", "profile", id, "--seconds", "500ms", "--outside")
        assert outside["schema"] == "wherry/profile/1" and outside["nodes"]


def test_a_job_without_it_is_measured_from_outside(wherry: RealInstance) -> None:
    with job(wherry, "openmpi") as id:
        found = measured(wherry, id)
        assert found["schema"] == "wherry/profile/1" and found["jobs"] == [id]
