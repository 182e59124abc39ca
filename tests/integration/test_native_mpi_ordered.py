"""Reductions of libwherry-mpi in the order of ranks: the same bits for any map of sites, under both MPIs."""

from __future__ import annotations

import os
import subprocess

import pytest
from mpi_programs import LIBRARY, SOURCES, Programs, environment

from properties import examples
from wherry.job import launcher_command

RANKS = 6
MAPS = ("0x6", "0x3,1x3", "0x1,1x4,0x1", "2x2,0x1,1x2,2x1", "0x1,1x1,2x1,3x1,4x1,5x1")
BY_RANKS = {
    "openmpi": {f"OMPI_MCA_{name}": value for name, value in launcher_command.BY_RANKS.items()},
    "mpich": {"MPIR_CVAR_NOLOCAL": "1"},
}
"""With these the libraries choose their algorithms without regard to nodes."""
OTHERWISE = {
    "openmpi": (
        {},
        {"OMPI_MCA_coll_han_priority": "90", "OMPI_MCA_coll_sm_priority": "80"},
        {"OMPI_MCA_coll_adapt_priority": "90"},
    ),
    "mpich": tuple({"MPIR_CVAR_NUM_CLIQUES": str(nodes), "MPIR_CVAR_NOLOCAL": "0"} for nodes in (1, 2, 3)),
}
"""Settings that make them reduce in other orders: components that use nodes, and several nodes on this machine."""
PARTED = MAPS[1:]
"""Those by which ranks are at several sites: also where each is at its own, some that do not block go by sites."""


@pytest.fixture(scope="module", params=["openmpi", pytest.param("mpich", marks=pytest.mark.thorough)])
def programs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Programs:
    made = Programs(request.param, tmp_path_factory.mktemp(request.param))
    made.build("mpicc", "mpi_ordered.c", "ordered", f"-I{SOURCES.parent / 'mpi'}", "-ffp-contract=off")
    return made


def run(programs: Programs, sites: str, seed: int, *, in_order: bool) -> str:
    """The program's output on its results."""
    env = {"WHERRY_MPI_SITES": sites, **({"WHERRY_MPI_IN_ORDER": "1"} if in_order else {})}
    return say(programs, f"libwherry-wait.so {LIBRARY}", seed, **env, **BY_RANKS[programs.flavour])


def say(programs: Programs, preload: str, seed: int, **env: str) -> str:
    words = [str(programs.directory / "ordered"), str(seed), str(examples(40))]
    command = programs.command(preload, RANKS)
    for name in env:
        if programs.flavour == "mpich":
            words[:0] = ["-env", name, env[name]]  # of the program's own: it counts, whatever all have
        elif not name.startswith("OMPI_"):
            command[1:1] = ["-x", name]
    env = {**os.environ, **environment(always=True), **env}
    done = subprocess.run([*command, *words], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.rstrip()


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_bits_are_the_same_for_all_maps(programs: Programs, seed: int) -> None:
    said = {sites: run(programs, sites, seed, in_order=True) for sites in MAPS}
    bits = said[MAPS[0]].partition(",")[0]
    assert said == {sites: f"{bits}, all in order, {'by levels' if sites in PARTED else 'plain'}" for sites in MAPS}


def test_bits_differ_between_maps_without_the_order(programs: Programs) -> None:
    said = set[str]()
    for sites in MAPS:
        said.add(run(programs, sites, 1, in_order=False))
        if len({one.partition(",")[0] for one in said}) > 1 and any("not in order" in one for one in said):
            return
    pytest.fail(f"the same, or in order: {said}")


def test_the_library_alone_gives_the_same_bits_whatever_it_takes_for_a_node(programs: Programs) -> None:
    flavour = programs.flavour
    said = {say(programs, "libwherry-wait.so", 1, **{**env, **BY_RANKS[flavour]}) for env in OTHERWISE[flavour]}
    assert len(said) == 1
    first, *others = OTHERWISE[flavour]
    alone = say(programs, "libwherry-wait.so", 1, APART="1", **first)
    assert any(say(programs, "libwherry-wait.so", 1, APART="1", **env) != alone for env in others), "the same without"
