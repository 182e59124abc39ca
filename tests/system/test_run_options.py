"""`wherry run` with the options of mpirun, under both MPIs: each rank prints its place and its environment."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from realworld import RealInstance

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root")
LAUNCHERS = {"openmpi": "/usr/bin/mpirun.openmpi", "mpich": "/usr/bin/mpiexec.mpich"}
ONE_IN_SMOKE = pytest.mark.parametrize(
    "flavour", ["openmpi", pytest.param("mpich", marks=pytest.mark.thorough)], indirect=True
)
WHERE = 'echo "${OMPI_COMM_WORLD_RANK:-$PMI_RANK} $(hostname) $0 $WORD $PWD"'


@pytest.fixture(params=list(LAUNCHERS))
def flavour(request: pytest.FixtureRequest) -> str:
    if not Path(LAUNCHERS[request.param]).exists():
        pytest.skip(f"{LAUNCHERS[request.param]} is not installed")
    return str(request.param)


def output(four: RealInstance, flavour: str, ranks: int, words: tuple[str, ...], *command: str) -> str:
    done = four("run", "four", "-n", str(ranks), "--mpi", flavour, *words, "--", *command)
    assert done.returncode == 0, done.stderr
    return done.stdout


def told(four: RealInstance, flavour: str, *words: str, ranks: int = 5, more: tuple[str, ...] = ()) -> list[list[str]]:
    """The output of each rank, by rank."""
    said = sorted(
        line.split() for line in output(four, flavour, ranks, words, "sh", "-c", WHERE, "a", *more).splitlines()
    )
    assert [int(words[0]) for words in said] == list(range(len(said)))
    return said


def places(said: list[list[str]]) -> str:
    return "".join(words[1].rpartition("-")[2] for words in said)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param((), "00123", marks=pytest.mark.thorough),
        pytest.param(("--map-by", "slot"), "00123", marks=pytest.mark.thorough),
        pytest.param(("--map-by", "node"), "01230", marks=pytest.mark.thorough),
        (("--map-by", "ppr:2:node", "--rank-by", "node"), "01201"),
        (("--hosts", "four-2,four-0"), "22200"),
    ],
)
@pytest.mark.smoke
def test_ranks_are_where_they_were_asked_to_be(
    four: RealInstance, flavour: str, words: tuple[str, ...], expected: str
) -> None:
    assert places(told(four, flavour, *words)) == expected


def test_ranks_are_bound(four: RealInstance, flavour: str) -> None:
    command = ("sh", "-c", "grep Cpus_allowed_list /proc/self/status")
    for words, bound in (((), False), (("--bind-to", "core"), True)):
        said = output(four, flavour, 2, ("--hosts", "four-1", *words), *command).splitlines()
        assert len(said) == 2 and len(set(said)) == (2 if bound else 1), said
    more = os.cpu_count() or 1
    assert output(four, flavour, more + 1, ("--bind-to", "core"), "echo", "ran").count("ran") == more + 1


def test_a_rank_file_is_followed_and_the_job_knows_it(four: RealInstance, flavour: str) -> None:
    lines = "".join(f"rank {rank}=four-{node} slot=*\n" for rank, node in enumerate("20012"))
    file = four.file("ranks", f"# by hand\n{lines}")
    assert places(told(four, flavour, "--rankfile", file)) == "20012"
    job = four.json("job", "list")["jobs"][-1]
    assert job["rank_nodes"] == [f"four-{node}" for node in "20012"]


@ONE_IN_SMOKE
@pytest.mark.smoke
def test_several_programs_are_one_job(four: RealInstance, flavour: str) -> None:
    said = told(four, flavour, ranks=2, more=(":", "-n", "3", "sh", "-c", WHERE, "b"))
    assert [words[2] for words in said] == ["a", "a", "b", "b", "b"] and places(said) == "00123"


def test_variables_and_the_directory_are_the_ranks(four: RealInstance, flavour: str) -> None:
    (four.directory / "below").mkdir(exist_ok=True)
    said = told(four, flavour, "-x", "WORD=given", "--wdir", str(four.directory / "below"), ranks=2)
    assert [words[3:] for words in said] == [["given", str(four.directory / "below")]] * 2


def test_words_of_the_launcher(four: RealInstance, flavour: str) -> None:
    word = {"openmpi": "--tag-output", "mpich": "-prepend-rank"}[flavour]
    said = output(four, flavour, 2, ("--launcher-args", word), "echo", "said")
    assert said.count("said") == 2 == said.count("[")


def test_a_job_ends_at_its_time_limit(four: RealInstance, flavour: str) -> None:
    done = four("run", "four", "-n", "3", "--mpi", flavour, "--timeout", "2s", "--", "sleep", "200")
    assert done.returncode != 0
    job = four.json("job", "list")["jobs"][-1]
    assert job["state"] == "failed" and job["failure"]["cause"] == "timeout" and "time limit of 2" in job["reason"]


def test_a_cluster_for_one_job(four: RealInstance, flavour: str) -> None:
    file = four.cluster_file("once", 2)
    words = ("run", "--up", file, "-n", "2", "--mpi", flavour, "--", "sh", "-c", "hostname; sleep 1; exit 3")
    done = four(*words)
    assert done.returncode == 3 and sorted(done.stdout.split()) == ["once-0", "once-1"]
    assert [cluster["name"] for cluster in four.json("status")["clusters"]] == ["four"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--map-by", "core"), "--map-by core is not valid"),
        (("--map-by", "ppr:1:node"), "5 ranks do not fit on 4 nodes"),
        (("--hosts", "four-7"), "has no node 'four-7'"),
        (("--rank-by", "socket"), "--rank-by socket is not valid"),
        (("--bind-to", "chip"), "--bind-to chip is not valid"),
        (("-x", "NOWHERE_SET"), "NOWHERE_SET is not set"),
        (("--timeout", "-3s"), "--timeout"),
        (("--wdir", "/nowhere"), "/nowhere"),
        (("--rankfile", "/nowhere"), "cannot be read"),
        (("--rankfile", "/nowhere", "--hosts", "four-1"), "--rankfile leaves nothing"),
        (("--hosts", ""), "the node '' is not valid"),
        (("--hosts", "n" * 70), "is not valid"),
        (("--up", "four.yaml", "--detach"), "exclude each other"),
        (("--up", "/nowhere.yaml"), "/nowhere.yaml"),
    ],
)
def test_bad_words_are_named(four: RealInstance, words: tuple[str, ...], said: str) -> None:
    done = four("run", "four", "-n", "5", "--mpi", "openmpi", *words, "--", "true")
    assert done.returncode not in (0, 70) and said in done.stderr
    assert "next:" in done.stderr


@pytest.mark.parametrize("words", [("true", ":", "-n", "0", "true"), (":", "-n", "1", "true"), ("true", ":", "true")])
def test_wrong_words_beside_a_colon(four: RealInstance, words: tuple[str, ...]) -> None:
    done = four("run", "four", "-n", "1", "--", *words)
    assert done.returncode == 2 and "beside a colon" in done.stderr


def test_bad_words_make_no_cluster(four: RealInstance) -> None:
    file = four.cluster_file("vain", 1)
    done = four("run", "--up", file, "-n", "1", "--map-by", "core", "--", "true")
    assert done.returncode == 2 and "--map-by core is not valid" in done.stderr
    assert not [event for event in four.json("event", "list")["events"] if event["target"] == "vain"]
