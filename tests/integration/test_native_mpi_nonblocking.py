"""Non-blocking collectives of libwherry-mpi have the results of the library's own, whatever ranks call meanwhile."""

from __future__ import annotations

import os
import shutil
import subprocess
import zlib

import pytest
from mpi_programs import LAUNCH, LIBRARY, SOURCES, Programs, environment

from properties import examples

RIGHT = "0 wrong, 3 of 3 by sites\n"


@pytest.fixture(scope="module", params=sorted(LAUNCH))
def programs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Programs:
    made = Programs(request.param, tmp_path_factory.mktemp(request.param))
    made.build("mpicc", "mpi_nonblocking.c", "nonblocking", f"-I{SOURCES.parent / 'mpi'}")
    return made


def run(
    programs: Programs, sites: str, ranks: int, *words: str, before: tuple[str, ...] = (), **more: str
) -> subprocess.CompletedProcess[str]:
    more |= {"WHERRY_MPI_SITES": sites}
    command = [*programs.command(f"libwherry-wait.so {LIBRARY}", ranks), *before]
    if programs.flavour == "openmpi":
        command[1:1] = [word for name in more for word in ("-x", name)]
    command += [str(programs.directory / "nonblocking"), *words]
    env = {**os.environ, **environment(always=True), **more}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=100)


@pytest.mark.parametrize(
    ("ranks", "sites"),
    [
        pytest.param(6, "0x3,1x3", marks=pytest.mark.thorough),
        pytest.param(5, "0x1,1x4", marks=pytest.mark.thorough),
        pytest.param(6, "0x1,1x1,2x1,3x1,4x1,5x1", marks=pytest.mark.thorough),
        (7, "0x1,2x1,1x2,0x2,2x1"),
        pytest.param(3, "0x2,1x1", marks=pytest.mark.thorough),
    ],
)
def test_results_are_those_of_the_library(programs: Programs, ranks: int, sites: str) -> None:
    done = run(programs, sites, ranks, str(zlib.crc32(sites.encode())), str(examples(60)))
    assert (done.returncode, done.stdout) == (0, RIGHT), done.stderr


@pytest.mark.thorough
def test_ranks_that_hear_of_moves_at_different_times_decide_alike(programs: Programs) -> None:
    done = run(programs, "0x3,1x3", 6, "5", str(examples(150)), "moves")
    assert (done.returncode, done.stdout) == (0, RIGHT), done.stderr


@pytest.mark.parametrize(("ranks", "sites"), [(4, "0x4"), (2, "0x1,1x1"), (4, "0x3")])
def test_without_several_sites_they_are_the_library_s(programs: Programs, ranks: int, sites: str) -> None:
    done = run(programs, sites, ranks, "1", str(examples(10)))
    assert (done.returncode, done.stdout) == (0, "0 wrong, 0 of 3 by sites\n"), done.stderr


@pytest.mark.parametrize(
    "alone", ["export THREADS=1", "export WHERRY_MPI_SITES=0x1,1x3"], ids=["several threads", "another map"]
)
def test_one_rank_that_cannot_makes_all_do_without(programs: Programs, alone: str) -> None:
    """Of another map they learn by the first collective that blocks."""
    first = "${PMI_RANK-$OMPI_COMM_WORLD_RANK}"
    shell = ("/bin/sh", "-c", f'test "{first}" != 0 || {alone}; exec "$0" "$@"')
    done = run(programs, "0x2,1x2", 4, "1", str(examples(10)), before=shell)
    assert (done.returncode, done.stdout) == (0, "0 wrong, 0 of 3 by sites\n"), done.stderr


def test_sums_in_the_order_of_ranks_are_the_library_s(programs: Programs) -> None:
    done = run(programs, "0x2,1x2", 4, "1", str(examples(20)), WHERRY_MPI_IN_ORDER="1")
    assert (done.returncode, done.stdout) == (0, "0 wrong, 2 of 3 by sites\n"), done.stderr


def test_fortran_has_them(programs: Programs) -> None:
    if not shutil.which(f"mpifort.{programs.flavour}"):
        pytest.skip(f"no mpifort.{programs.flavour} on this machine")
    program = programs.build("mpifort", "mpi_nonblocking.f90", "fortran")
    with programs.running(str(program), WHERRY_MPI_SITES="0x2,1x2") as found:
        assert {page.by_levels for page in found.values()} == {14}
