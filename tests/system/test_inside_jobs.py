"""Programs that ask Wherry from inside their nodes: each example moves itself and another rank, under both MPIs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from realworld import SECONDS, RealInstance, eventually, real_instance

from wherry.base.paths import for_programs, native_library

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root")
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FABRIC = """\
kind: fabric
version: 1
name: pair
sites: [{name: a}, {name: b}]
hosts:
  - {name: a1, site: a, cores: 4, memory: 2GiB}
  - {name: b1, site: b, cores: 4, memory: 2GiB}
links:
  - {between: [a, b]}
"""
NOBODY = 65534
_PYTHON = "/usr/bin/python3"


@pytest.fixture(scope="module")
def pair() -> Iterator[RealInstance]:
    """Two nodes on two hosts."""
    with real_instance("tins") as created:
        created.kept.make(lambda: make(created))
        yield created


def make(pair: RealInstance) -> None:
    pair.json("fabric", "up", pair.file("pair.yaml", FABRIC))
    pair.up("two", 2)


def python_path(pair: RealInstance) -> tuple[str, ...]:
    """Libraries of programs in Python, in a directory that nodes see. As options, since sudo drops the variables."""
    for file in (for_programs("wherry_inside.py"), native_library("libwherry.so"), EXAMPLES / "move_self.py"):
        if not (pair.directory / file.name).exists():
            shutil.copy(file, pair.directory)
    return "--env", f"PYTHONPATH={pair.directory}", "--env", "PYTHONDONTWRITEBYTECODE=1"


def built(pair: RealInstance, flavour: str, language: str) -> list[str]:
    """The command line of an example."""
    if not shutil.which(f"mpicc.{flavour}"):
        pytest.skip(f"no mpicc.{flavour} on this machine")
    if language == "python":
        return ["--mpi", flavour, *python_path(pair), "--", _PYTHON, str(pair.directory / "move_self.py")]
    compiler, suffix = ("mpicc", "c") if language == "c" else ("mpif90", "f90")
    if not shutil.which(f"{compiler}.{flavour}"):
        pytest.skip(f"no {compiler}.{flavour} on this machine")
    program = pair.directory / f"move_self-{flavour}-{language}"
    flags, source = pair("inside", language).stdout.split(), str(EXAMPLES / f"move_self.{suffix}")
    words = [
        f"{compiler}.{flavour}",
        "-O2",
        "-o",
        str(program),
        *([source, *flags] if language == "c" else [*flags, source]),
    ]
    subprocess.run(words, check=True, capture_output=True, timeout=120, cwd=pair.directory)
    return ["--", str(program)]


@pytest.mark.parametrize("flavour", ["openmpi", "mpich"])
@pytest.mark.parametrize("language", ["c", "fortran", "python"])
def test_a_program_moves_itself_and_another_rank(pair: RealInstance, language: str, flavour: str) -> None:
    command = built(pair, flavour, language)
    before = pair.hosts_of("two")
    done = pair("run", "two", "-n", "4", *command)
    assert done.returncode == 0, (done.stdout, done.stderr)
    after = pair.hosts_of("two")
    other = {"a1": "b1", "b1": "a1"}
    assert done.stdout.splitlines()[:3] == [
        "under Wherry",
        f"rank 0 moved from {before['two-0']} to {other[before['two-0']]}",
        f"rank 3 moved from {before['two-1']} to {other[before['two-1']]}",
    ], done.stderr
    assert after == {node: other[host] for node, host in before.items()}
    ranks = 1 if language == "python" else 10  # sums of one rank, or of 1 to 4
    assert done.stdout.splitlines()[3] == f"sum {465 * ranks}"
    job = pair.json("job", "list", "two")["jobs"][-1]
    hints = pair.json("job", "show", job["id"])["hints"]
    assert hints["iterations"][0]["left"] in (0, 1) and hints["iterations"][0]["per_iteration"] > 0


def python(pair: RealInstance, name: str, code: str, *words: str, cluster: str = "two") -> list[str]:
    """A command line of `wherry run` for a program of one rank."""
    file = pair.file(name, "import os, sys, time\nimport wherry_inside as wherry\n" + code)
    program = [_PYTHON, str(pair.directory / file), *words]
    return [cluster, "-n", "1", "--mpi", "openmpi", *python_path(pair), "--", *program]


def rest_of(job: subprocess.Popen[str]) -> tuple[str, str]:
    """The output of a job from now on until its end: `communicate` would lose the text that `readline` has buffered."""
    assert job.stdout and job.stderr
    out, err = job.stdout.read(), job.stderr.read()
    job.wait(SECONDS)
    return out, err


def said_by_ranks(out: str, words: str) -> list[str]:
    """The output of several ranks: their terminals may hand the launcher a line and its end apart."""
    return re.findall(words, out)


def token_of(pair: RealInstance, job: str) -> str:
    """The token of a running job, as its ranks have it."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            found = dict(part.split(b"=", 1) for part in (entry / "environ").read_bytes().split(b"\0") if b"=" in part)
        except OSError:
            continue
        if found.get(b"WHERRY_JOB_ID", b"").decode() == job and b"WHERRY_TOKEN" in found:
            return found[b"WHERRY_TOKEN"].decode()
    return ""


def test_the_token_of_another_user_is_refused(pair: RealInstance) -> None:
    """A rank of root's shows the token of a job of user nobody on a cluster of theirs."""
    file = pair.cluster_file("theirs", 1)
    theirs = pair.directory / "open"
    theirs.mkdir(mode=0o755)
    os.chown(theirs, NOBODY, NOBODY)
    as_nobody = {"SUDO_UID": str(NOBODY), "SUDO_GID": str(NOBODY)}
    assert pair("up", file, **as_nobody).returncode == 0
    started = pair("run", "theirs", "-n", "1", "--mpi", "openmpi", "--detach", "--", "/bin/sleep", "120", **as_nobody)
    assert started.returncode == 0, started.stderr
    job = pair.json("job", "list", "theirs")["jobs"][-1]["id"]
    token = eventually(lambda: token_of(pair, job) != "", True) and token_of(pair, job)
    assert token.startswith(f"{job}.")
    code = (
        "assert wherry.where().cluster == 'two'\n"
        "import json, urllib.request\n"
        "head = {'Authorization': 'Bearer ' + os.environ['WHERRY_TOKEN']}\n"
        "asked = urllib.request.Request('http://' + os.environ['WHERRY_SERVICE'] + '/v1/self', headers=head)\n"
        "assert json.load(urllib.request.urlopen(asked, timeout=20))['cluster'] == 'two'\n"
        "for token in (sys.argv[1], 'job-1.' + '0' * 64):\n"
        "    os.environ['WHERRY_TOKEN'] = token\n"
        "    for ask in (wherry.where, wherry.hosts, lambda: wherry.move('b1'), lambda: wherry.expected(3)):\n"
        "        try:\n            ask()\n            print('let in')\n"
        "        except wherry.InsideError as error:\n            print(error.code)\n"
    )
    done = pair("run", *python(pair, "stranger.py", code, token))
    assert (done.returncode, done.stdout.split()) == (0, ["-4"] * 8), done.stderr
    log = (pair.instance.state / "log").read_text()
    assert token.partition(".")[2] not in log + pair("job", "show", job).stdout + pair("event", "list").stdout
    reach = "import socket\ns = socket.socket()\ns.settimeout(3)\n"
    reach += "try:\n    s.connect((sys.argv[1], 7311))\n    print('open')\n"
    reach += "except OSError:\n    print('closed')\n"
    head = (
        next(c for c in pair.json("status")["clusters"] if c["name"] == "theirs")["subnet"].rpartition(".")[0] + ".254"
    )
    assert pair("run", *python(pair, "reach.py", reach, head)).stdout == "closed\n"
    assert pair("down", "theirs", "--yes").returncode == 0
    assert pair("up", file, **as_nobody).returncode == 0, "its listener was closed with its network"
    assert pair("down", "theirs").returncode == 0


def test_a_killed_daemon_is_an_error_and_no_hang(pair: RealInstance) -> None:
    code = (
        "go = sys.argv[1]\n"
        "assert wherry.where()\n"
        "open(go + '.ready', 'w').close()\n"
        "while not os.path.exists(go):\n    time.sleep(0.1)\n"
        "begun = time.time()\n"
        "try:\n    wherry.where()\n    print('answered', flush=True)\n"
        "except wherry.InsideError as error:\n"
        "    print(error.code == wherry.E_UNREACHABLE, time.time() - begun < 100, flush=True)\n"
        "open(go + '.answered', 'w').close()\n"
        "while not os.path.exists(go + '.again'):\n    time.sleep(0.1)\n"
        "print(wherry.where().node, flush=True)\n"
    )
    go = pair.directory / "go"
    assert pair("run", "--detach", *python(pair, "killed.py", code, str(go))).returncode == 0
    assert eventually(Path(f"{go}.ready").exists, True)
    pair.kill_daemon()
    go.touch()
    assert eventually(Path(f"{go}.answered").exists, True, 120)
    pair.start_daemon()
    Path(f"{go}.again").touch()
    job = pair.json("job", "list", "two")["jobs"][-1]["id"]
    said = pair("logs", "two", "--job", job, "--follow").stdout
    assert said in ("True True\ntwo-0\n", "True True\ntwo-1\n")


def test_a_daemon_killed_amid_the_move_that_a_program_asked_for(pair: RealInstance) -> None:
    """The next daemon finishes the move or rolls it back; the program gets the outcome, and ends as it would."""
    code = (
        "here = wherry.where()\n"
        "target = next(host.name for host in wherry.hosts() if host.name != here.host)\n"
        "print('asks', flush=True)\n"
        "try:\n    wherry.move(target)\n    print('moved', wherry.where().host == target, flush=True)\n"
        "except wherry.InsideError as error:\n    print('stayed', wherry.where().host == here.host, flush=True)\n"
    )
    with pair.start("run", *python(pair, "amid.py", code)) as job:
        assert job.stdout and job.stdout.readline() == "asks\n"
        under_way = eventually(lambda: any(pair.instance.run.glob("nodes/*/images")), True, 30, 0.005)
        pair.kill_daemon()
        out, err = rest_of(job)
    assert under_way
    assert job.returncode == 0 and out in ("moved True\n", "stayed True\n"), (out, err)
    pair.assert_one_copy("two")


@pytest.mark.parametrize("flavour", ["openmpi", "mpich"])
def test_a_rank_moves_while_others_want_its_first_connection(pair: RealInstance, flavour: str) -> None:
    """While it waits for the move, it accepts them: else they would keep its node from being moved."""
    if not shutil.which(f"mpicc.{flavour}"):
        pytest.skip(f"no mpicc.{flavour} on this machine")
    program, flags = str(pair.directory / f"early-{flavour}"), pair("inside", "c").stdout.split()
    source = str(EXAMPLES.parent / "native" / "tests" / "inside_early.c")
    words = [f"mpicc.{flavour}", "-O2", "-Wall", "-o", program, source, *flags]
    subprocess.run(words, check=True, capture_output=True, timeout=120)
    done = pair("run", "two", "-n", "6", "--", program)
    assert (done.returncode, done.stdout.split()) == (0, ["move", "0", "sum", "6"]), (done.stdout, done.stderr)


def test_requests_neither_stop_a_move_nor_are_lost_in_one(pair: RealInstance) -> None:
    """Every rank makes requests all the time while both nodes are moved back and forth."""
    code = (
        "here, calls = wherry.where(), 0\n"
        "print('asks', flush=True)\n"
        "while not os.path.exists(sys.argv[1]):\n"
        "    place = wherry.where((here.rank + calls) % here.ranks)\n"
        "    assert place.cluster == 'two' and wherry.expected(60) and len(wherry.hosts()) == 2\n"
        "    calls += 1\n"
        "print('asked' if calls > 3 else calls, flush=True)\n"
    )
    stop = pair.directory / "stop"
    words = python(pair, "always.py", code, str(stop))
    words[2] = "4"
    with pair.start("run", *words) as job:
        assert job.stdout and job.stdout.readline() == "asks\n"
        other = {"a1": "b1", "b1": "a1"}
        for node in ("two-0", "two-1", "two-0", "two-1"):
            pair.move(node, other[pair.hosts_of("two")[node]])
        stop.touch()
        out, err = rest_of(job)
    assert (job.returncode, sorted(said_by_ranks(out, "asked|asks"))) == (0, ["asked"] * 4 + ["asks"] * 3), (out, err)


def test_the_daemon_chooses_when_a_node_moves(four: RealInstance) -> None:
    """A wish is made in a critical phase, and granted after it; balancing an idle rank moves nothing."""
    code = (
        "here = wherry.where()\n"
        "target = next(host.name for host in wherry.hosts() if host.name != here.host)\n"
        "with wherry.phase('write', critical=True):\n"
        "    print(wherry.move_when_cheap(target, downtime=60, within=120), flush=True)\n"
        "    time.sleep(2)\n"
        "    print(wherry.where().host == here.host, flush=True)\n"
        "end = time.time() + 120\n"
        "while wherry.where().host == here.host and time.time() < end:\n    time.sleep(0.1)\n"
        "print(wherry.where().host == target, flush=True)\n"
        "print(wherry.balance(), flush=True)\n"
    )
    done = four("run", *python(four, "wish.py", code, cluster="four"))
    assert (done.returncode, done.stdout.split()) == (0, ["True", "True", "True", "0"]), done.stderr
    kinds = [operation["kind"] for operation in four.json("op", "list")["operations"]]
    assert {"wish", "balance"} <= set(kinds)


def test_wishes_that_wait_keep_no_cluster_up(pair: RealInstance) -> None:
    """They end when their job is gone."""
    code = (
        "target = next(host.name for host in wherry.hosts() if host.name != wherry.where().host)\n"
        "assert wherry.move_when_cheap(target, downtime=0, within=600) and wherry.move_when_cheap(within=600)\n"
        "open(sys.argv[1], 'w').close()\n"
        "time.sleep(600)\n"
    )
    pair.up("brief", 1)
    wished = pair.directory / "wished"
    words = python(pair, "wishes.py", code, str(wished))
    assert pair("run", "--detach", "brief", *words[1:]).returncode == 0
    assert eventually(wished.exists, True)
    waiting = [one for one in pair.json("op", "list")["operations"] if one["kind"] == "wish"][-2:]
    job = pair.json("job", "list", "brief")["jobs"][-1]["id"]
    found = [(one["target"].split(" to ")[0], one["state"]) for one in waiting]
    assert found == [("brief-0", "running"), (job, "running")]
    assert pair("down", "brief", "--yes").returncode == 0
    for one in waiting:
        pair("op", "wait", one["id"])
    ended = [one for one in pair.json("op", "list")["operations"] if one["id"] in {wish["id"] for wish in waiting}]
    assert [one["state"] for one in ended] == ["done"] * 2, ended


def test_all_ranks_may_ask_together_and_hints_keep_the_balancer_off(pair: RealInstance) -> None:
    code = (
        "here = wherry.where()\n"
        "with wherry.phase('checkpoint', critical=True):\n"
        "    open(sys.argv[1] + str(here.rank), 'w').close()\n"
        "    while not os.path.exists(sys.argv[1]):\n        time.sleep(0.1)\n"
        "target = next(host.name for host in wherry.hosts() if host.name != here.host)\n"
        "wherry.move(target)\n"
        "print(wherry.where().host == target, flush=True)\n"
    )
    go = pair.directory / "together"
    words = python(pair, "together.py", code, str(go))
    words[2] = "4"
    with pair.start("run", *words) as job:
        assert eventually(lambda: all(Path(f"{go}{rank}").exists() for rank in range(4)), True, 60)
        said = pair.json("balance", "two")
        go.touch()
        out, err = job.communicate(timeout=180)
    assert "critical phase 'checkpoint'" in str(said), said
    assert job.returncode == 0 and said_by_ranks(out, "True|False") == ["True"] * 4, (out, err)
    moves = [move for move in pair.json("op", "list")["operations"] if move["kind"] == "move"]
    assert len({move["target"] for move in moves[-2:]}) == 2
