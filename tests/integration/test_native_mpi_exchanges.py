"""All collectives by sites have the results of the MPI library's own, also while the map of sites keeps changing."""

from __future__ import annotations

import os
import subprocess
import zlib

import pytest
from mpi_programs import LIBRARY, SOURCES, Programs, descendants, environment

import waiting
from properties import examples
from wherry.node import rank_sites
from wherry.node.rank_sites import RankSites, site_numbers

MORE = pytest.mark.thorough


@pytest.fixture(scope="module", params=["openmpi", pytest.param("mpich", marks=pytest.mark.thorough)])
def programs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Programs:
    made = Programs(request.param, tmp_path_factory.mktemp(request.param))
    made.build("mpicc", "mpi_exchanges.c", "exchanges", f"-I{SOURCES.parent / 'mpi'}")
    made.build("mpicc", "mpi_large_types.c", "large_types")
    return made


def command(
    programs: Programs, sites: str, ranks: int, *words: str, program: str = "exchanges", in_order: bool = False
) -> tuple[list[str], dict[str, str]]:
    command = [*programs.command(f"libwherry-wait.so {LIBRARY}", ranks), str(programs.directory / program), *words]
    if programs.flavour == "openmpi":
        command[1:1] = ["-x", "WHERRY_MPI_SITES", *(["-x", "WHERRY_MPI_IN_ORDER"] if in_order else [])]
    order = {"WHERRY_MPI_IN_ORDER": "1"} if in_order else {}
    return command, {**os.environ, **environment(always=True), "WHERRY_MPI_SITES": sites, **order}


def run(
    programs: Programs, sites: str, ranks: int, *words: str, in_order: bool = False
) -> subprocess.CompletedProcess[str]:
    argv, env = command(programs, sites, ranks, *words, in_order=in_order)
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize(
    ("ranks", "sites"),
    [
        pytest.param(6, "0x3,1x3", marks=MORE),
        pytest.param(5, "0x1,1x4", marks=MORE),
        pytest.param(6, "0x1,1x1,0x1,1x1,0x1,1x1", marks=MORE),
        pytest.param(7, "2x2,0x3,1x2", marks=MORE),
        (7, "0x1,2x1,1x2,0x2,2x1"),
    ],
)
def test_results_are_those_of_the_library(programs: Programs, ranks: int, sites: str) -> None:
    seed = str(zlib.crc32(sites.encode()))
    done = run(programs, sites, ranks, seed, str(examples(80)))
    assert (done.returncode, done.stdout) == (0, "0 wrong, by levels\n"), done.stderr


def test_results_are_right_while_both_ways_are_tried(programs: Programs) -> None:
    argv, env = command(programs, "0x1,1x2,0x1,2x1,1x1", 6, "3", str(examples(80)))
    done = subprocess.run(argv, env={**env, **environment()}, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "0 wrong, by levels\n"), done.stderr


@pytest.mark.parametrize(
    ("sites", "in_order"),
    [
        pytest.param("0x3,1x3", False, marks=MORE),
        pytest.param("0x3,1x3", True, marks=MORE),
        pytest.param("0x6", False, marks=MORE),
        pytest.param("0x6", True, marks=MORE),
        pytest.param("0x1,1x1,2x1,3x1,4x1,5x1", False, marks=MORE),
        ("0x1,1x1,2x1,3x1,4x1,5x1", True),
    ],
)
def test_ranks_that_hear_of_moves_at_different_times_go_by_one_map(
    programs: Programs, sites: str, in_order: bool
) -> None:
    seed = str(zlib.crc32(sites.encode()))
    done = run(programs, sites, 6, seed, str(examples(200)), "moves", in_order=in_order)
    assert (done.returncode, done.stdout) == (0, "0 wrong, by levels\n"), done.stderr


@pytest.mark.parametrize("collective", ["gatherv", pytest.param("alltoallv", marks=MORE)])
def test_an_element_may_have_more_bytes_than_an_int_counts(programs: Programs, collective: str) -> None:
    argv, env = command(programs, "0x2,1x2", 4, collective, program="large_types")
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "0 wrong\n"), done.stderr


def test_ranks_are_told_of_moves_while_they_run(programs: Programs) -> None:
    argv, env = command(programs, "0x3,1x3", 6, "1", "1000000")
    with subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL) as process:
        try:
            waiting.until(lambda: len(ranks_of(process.pid)) == 6, "six ranks")
            pids = ranks_of(process.pid)
            for epoch, runs in ((1, "0x2,1x4"), (2, "0x3,1x3"), (5, "0x1,1x3,0x2")):
                map_ = RankSites(epoch, site_numbers(runs))
                assert rank_sites.tell(pids, map_) == (6, 0)
                assert rank_sites.tell(pids, map_) == (6, 0)
                assert {rank_sites.heard(pid, 6) for pid in pids} == {map_}
                waiting.until(lambda epoch=epoch: {rank_sites.used(pid, 6) for pid in pids} == {epoch}, "the table")
            assert rank_sites.tell(pids, RankSites(4, (0,) * 6)) == (0, 5)
            assert rank_sites.tell(pids, RankSites(9, (0,) * 7)) == (0, 0)
        finally:
            process.terminate()
            process.wait(waiting.bound())


def ranks_of(launcher: int) -> list[int]:
    return [pid for pid in descendants(launcher) if rank_sites.heard(pid, 6) is not None]
