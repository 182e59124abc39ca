"""Collectives of libwherry-mpi by levels: each has the bytes that the MPI library's own has, under both MPIs."""

from __future__ import annotations

import os
import subprocess
import zlib

import pytest
from mpi_programs import LAUNCH, LIBRARY, SOURCES, Programs, environment

from properties import examples


@pytest.fixture(scope="module", params=sorted(LAUNCH))
def programs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Programs:
    made = Programs(request.param, tmp_path_factory.mktemp(request.param))
    made.build("mpicc", "mpi_collectives.c", "collectives", f"-I{SOURCES.parent / 'mpi'}")
    return made


def run(
    programs: Programs, sites: str, ranks: int, *words: str, before: tuple[str, ...] = (), in_order: bool = False
) -> subprocess.CompletedProcess[str]:
    command = [
        *programs.command(f"libwherry-wait.so {LIBRARY}", ranks),
        *before,
        str(programs.directory / "collectives"),
        *words,
    ]
    env = {**os.environ, **environment(always=True), "WHERRY_MPI_SITES": sites}
    env |= {"WHERRY_MPI_IN_ORDER": "1"} if in_order else {}
    if programs.flavour == "openmpi":
        command[1:1] = ["-x", "WHERRY_MPI_SITES", *(["-x", "WHERRY_MPI_IN_ORDER"] if in_order else [])]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize(
    ("ranks", "sites"),
    [
        pytest.param(6, "0x3,1x3", marks=pytest.mark.thorough),
        pytest.param(5, "0x1,1x4", marks=pytest.mark.thorough),
        pytest.param(6, "0x1,1x1,0x1,1x1,0x1,1x1", marks=pytest.mark.thorough),
        pytest.param(7, "2x2,0x3,1x2", marks=pytest.mark.thorough),
        (7, "0x1,2x1,1x2,0x2,2x1"),
    ],
)
def test_results_are_those_of_the_library(programs: Programs, ranks: int, sites: str) -> None:
    seed = str(zlib.crc32(sites.encode()))
    done = run(programs, sites, ranks, seed, str(examples(20)))
    assert (done.returncode, done.stdout) == (0, "0 wrong, by levels\n"), done.stderr


@pytest.mark.parametrize(
    ("ranks", "sites"),
    [(6, "0x6"), pytest.param(6, "0x1,1x1,0x1,1x1,0x1,1x1", marks=pytest.mark.thorough), (7, "0x1,2x1,1x2,0x2,2x1")],
)
def test_results_in_the_order_of_ranks_are_those_of_the_library(programs: Programs, ranks: int, sites: str) -> None:
    done = run(programs, sites, ranks, "7", str(examples(20)), in_order=True)
    by = "by levels" if "," in sites else "plain"
    assert (done.returncode, done.stdout) == (0, f"0 wrong, {by}\n"), done.stderr


@pytest.mark.parametrize(
    "sites",
    [
        "0x3,1x2",
        "0x3;1x3",
        *(
            pytest.param(sites, marks=pytest.mark.thorough)
            for sites in ("0x6", "0x-3,1x9", "1x", "0x3,1x99999999999999999999")
        ),
    ],
)
def test_a_map_that_does_not_fit_changes_nothing(programs: Programs, sites: str) -> None:
    done = run(programs, sites, 6, "1", "5")
    assert (done.returncode, done.stdout) == (0, "0 wrong, plain\n"), done.stderr


@pytest.mark.parametrize(
    "alone", ["export THREADS=1", "export WHERRY_MPI_SITES=0x2"], ids=["several threads", "another map"]
)
def test_one_rank_that_cannot_makes_all_do_without(programs: Programs, alone: str) -> None:
    first = "${PMI_RANK-$OMPI_COMM_WORLD_RANK}"
    shell = ("/bin/sh", "-c", f'test "{first}" != 0 || {alone}; exec "$0" "$@"')
    done = run(programs, "0x2,1x2", 4, "1", "5", before=shell)
    assert (done.returncode, done.stdout) == (0, "0 wrong, plain\n"), done.stderr
