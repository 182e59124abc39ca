"""libwherry-mpi before MPI_Comm_spawn: the root's info gets the nodes that the daemon names, under both MPIs. Debian's
MPICH cannot spawn, so the arguments for its library are looked at instead (native/tests/spawn_seen.c)."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from mpi_programs import LAUNCH, LIBRARY, Programs, environment
from test_inside_library import answering, says

import waiting
from ports import reserved

PLACED = says("hosts=10.77.1.3:2,10.77.1.4:2\n")
ONE = ["one 4 host={0} wdir=-", "one 5 host={1} wdir=/tmp"]
MANY = ["many 2 host={0} wdir=-", "many 3 host={1} wdir=/tmp"]
OTHER = "one 6 host=- wdir=-"
GIVEN = ("-", "a 1,b/1")
LISTED = "10.77.1.3:2,10.77.1.4:2"
EACH = "10.77.1.3,10.77.1.3,10.77.1.4,10.77.1.4"
"""The same as Open MPI gets it: nodes without ranks have no slots there."""


@pytest.fixture(scope="module", params=sorted(LAUNCH))
def programs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Programs:
    made = Programs(request.param, tmp_path_factory.mktemp(request.param))
    made.build("mpicc", "spawn_calls.c", "spawn")
    made.build("mpicc", "spawn_seen.c", "seen.so", "-shared", "-fPIC")
    return made


def run(programs: Programs, program: Path, **variables: str) -> tuple[list[str], str]:
    """The arguments that the library got, and the messages."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WHERRY_")}
    words = [*programs.command(f"{LIBRARY} {programs.directory / 'seen.so'}", 3), str(program)]
    env = {**kept, **environment(), **variables}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout.splitlines(), done.stderr


def nodes_of(programs: Programs) -> str:
    return EACH if programs.flavour == "openmpi" else LISTED


def expected(lines: list[str], hosts: tuple[str, str]) -> list[str]:
    return [line.format(*hosts) for line in lines]


def placed(programs: Programs) -> list[str]:
    """MPICH has one list for all commands of a call."""
    joined = f"{LISTED},{LISTED}" if programs.flavour == "mpich" else EACH
    return [*expected(ONE, (nodes_of(programs),) * 2), OTHER, *expected(MANY, (joined, joined))]


def test_the_roots_info_gets_the_nodes_that_the_daemon_names(programs: Programs) -> None:
    with answering(PLACED) as (variables, asked):
        seen, told = run(programs, programs.directory / "spawn", WHERRY_PLACE_SPAWNED="1", **variables)
    assert seen == placed(programs)
    queries = [text.split()[1].partition("?")[2] for text in asked]
    ways = ((4, ""), (5, "a1,b%3F1"), (2, ""), (3, "a1,b%3F1"))
    assert queries == [f"processes={number}&room=255&host={host}" for number, host in ways]
    assert all(f"Bearer {variables['WHERRY_TOKEN']}" in text for text in asked)
    cannot = "wherry: this MPI cannot spawn processes: MPICH before 4.2 over UCX"
    assert told.count("wherry:") == told.count(cannot) <= (programs.flavour == "mpich")


@pytest.mark.parametrize("module", ["mpi", "mpi_f08"])
def test_fortran_is_placed_once(programs: Programs, module: str) -> None:
    if not shutil.which(f"mpif90.{programs.flavour}"):
        pytest.skip(f"no mpif90.{programs.flavour} on this machine")
    program = programs.build("mpif90", "spawn_calls.F90", f"spawn_{module}", f"-D{module.upper()}")
    with answering(PLACED) as (variables, asked):
        seen, _ = run(programs, program, WHERRY_PLACE_SPAWNED="1", **variables)
    assert seen == [line for line in placed(programs) if line != OTHER]
    assert len(asked) == 4


def test_a_list_that_is_too_long_has_each_node_once(programs: Programs) -> None:
    many = ",".join(f"10.77.1.{number}:9" for number in range(10, 20))
    with answering(says(f"hosts={many}\n")) as (variables, _):
        seen, _ = run(programs, programs.directory / "spawn", WHERRY_PLACE_SPAWNED="1", **variables)
    short = many.replace(":9", "") if programs.flavour == "openmpi" else many
    assert seen[0] == ONE[0].format(short)


def test_without_the_option_nobody_is_asked(programs: Programs) -> None:
    with answering(PLACED) as (variables, asked):
        seen, told = run(programs, programs.directory / "spawn", **variables)
    assert (seen, asked) == (expected([*ONE, OTHER, *MANY], GIVEN), [])
    assert "wherry:" not in told


def test_what_the_daemon_refuses_is_left_to_the_mpi_and_told(programs: Programs) -> None:
    refused = says("code=NOT_FOUND\nwhat=a1 is no node\nwhy=there are two-0\n", 404)
    with answering(refused, PLACED) as (variables, asked):
        seen, told = run(programs, programs.directory / "spawn", WHERRY_PLACE_SPAWNED="1", **variables)
    assert seen[0] == ONE[0].format("-") and seen[1] == ONE[1].format("", nodes_of(programs)), seen
    assert "wherry: spawned processes start where the MPI puts them: a1 is no node; there are two-0\n" in told
    assert len(asked) == 4


@pytest.mark.parametrize(
    "daemon", ["hangs", *(pytest.param(how, marks=pytest.mark.thorough) for how in ("gone", "drivels"))]
)
def test_a_daemon_that_does_not_answer_costs_a_second_and_a_line(programs: Programs, daemon: str) -> None:
    """For each command: two spawns of three ask, and a multiple one asks for its first command only."""
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        reserved() as nobody,
        answering(lambda _: b"SSH-2.0\r\n\r\n") as (drivel, _),
    ):
        port = nobody if daemon == "gone" else silent.getsockname()[1]
        variables = drivel if daemon == "drivels" else {**drivel, "WHERRY_SERVICE": f"127.0.0.1:{port}"}
        with waiting.no_hang():
            seen, told = run(programs, programs.directory / "spawn", WHERRY_PLACE_SPAWNED="1", **variables)
    assert seen == expected([*ONE, OTHER, *MANY], GIVEN)
    assert told.count("the daemon does not answer") == 3
