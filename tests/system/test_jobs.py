"""Jobs through the command line on real nodes: both MPIs, streams, exit codes, Ctrl-C, several at once, other users."""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from realworld import ring_program

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root")

WHERRY = Path(sys.executable).parent / "wherry"
INSTANCE = "tjob"
LAUNCHERS = {"openmpi": "/usr/bin/mpirun.openmpi", "mpich": "/usr/bin/mpiexec.mpich"}
SECONDS = 240  # for one command, on a loaded machine

Wherry = Callable[..., "subprocess.CompletedProcess[str]"]


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WHERRY_", "SUDO_"))}
    return {**kept, "WHERRY_INSTANCE": INSTANCE, **more}


def command(*words: str, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(WHERRY), *words],
        cwd=cwd,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def processes_with(mark: str) -> list[str]:
    """Command lines of this machine's processes (those on nodes too) whose environment or arguments hold `mark`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            text = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
            if mark.encode() in text and entry.name != str(os.getpid()):
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


def cluster_file(directory: Path, name: str, nodes: int) -> Path:
    path = directory / f"{name}.yaml"
    path.write_text(f"kind: container\nversion: 1\nname: {name}\nnodes: {nodes}\ncpus: 0.5\nmemory: 256MiB\n")
    return path


@pytest.fixture(scope="module")
def case() -> Iterator[Path]:
    """The working directory of the jobs, open to all. Nodes see it because the clusters are made there."""
    with tempfile.TemporaryDirectory(prefix="wherry-tjob-") as directory:
        os.chmod(directory, 0o755)
        yield Path(directory)


@pytest.fixture(scope="module")
def wherry(case: Path) -> Iterator[Wherry]:
    def run(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return command(*words, cwd=case, **more)

    run("down", "--all")
    for name, nodes in (("four", 4), ("two", 2)):
        up = run("up", str(cluster_file(case, name, nodes)))
        assert up.returncode == 0, up.stderr
    yield run
    down = run("down", "--all")
    assert down.returncode == 0, down.stderr


@pytest.mark.parametrize("flavour", ["openmpi", "mpich"])
def test_a_ring_on_four_nodes(wherry: Wherry, case: Path, flavour: str) -> None:
    done = wherry("run", "four", "-n", "4", "--", ring_program(flavour, case), "--seconds", "2", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["errors"] == 0 and result["ranks"] == 4
    assert "setpgid" not in done.stderr
    listed = json.loads(wherry("job", "list", "four", "-o", "json").stdout)["jobs"][-1]
    assert listed["mpi"].startswith(flavour) and listed["state"] == "ended" and listed["exit_code"] == 0


@pytest.mark.parametrize("flavour", list(LAUNCHERS))
def test_streams_stay_apart_and_the_exit_code_is_passed(wherry: Wherry, flavour: str) -> None:
    if not Path(LAUNCHERS[flavour]).exists():
        pytest.skip(f"{LAUNCHERS[flavour]} is not installed")
    script = "echo to stdout; echo to stderr >&2; exit 7"
    done = wherry("run", "four", "-n", "1", "--mpi", flavour, "--", "/bin/sh", "-c", script)
    assert done.returncode == 7
    assert "to stdout" in done.stdout and "to stderr" not in done.stdout
    assert "to stderr" in done.stderr and "to stdout" not in done.stderr
    kept = wherry("logs", "four")
    assert "to stdout" in kept.stdout and "to stderr" in kept.stderr


def test_ranks_spread_over_the_nodes_as_root_of_the_cluster(wherry: Wherry) -> None:
    done = wherry(
        "run", "four", "-n", "6", "--", "/bin/sh", "-c", "echo $(hostname) $(id -u) $OMP_NUM_THREADS $OWN", OWN="mine"
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == sorted(f"four-{index} 0 1 mine" for index in (0, 0, 1, 1, 2, 3))


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("four", "-n", "2", "--", "no-such-program"), 3, "no-such-program"),
        (("four", "-n", "2", "--", "./four.yaml"), 4, "chmod +x"),
        (("fuor", "-n", "2", "--", "/bin/true"), 3, "four"),
        (("four", "-n", "0", "--", "/bin/true"), 2, "rank"),
        (("four", "-n", "2", "--mpi", "lam", "--", "/bin/true"), 2, "openmpi"),
        (("four", "-n", "2", "--mpi", "/bin/true", "--", "/bin/true"), 4, "--version"),
    ],
)
def test_what_cannot_run_is_refused_and_leaves_no_job(
    wherry: Wherry, words: tuple[str, ...], code: int, says: str
) -> None:
    before = wherry("job", "list", "-o", "json").stdout
    done = wherry("run", *words)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert wherry("job", "list", "-o", "json").stdout == before


def running_job(wherry: Wherry, cluster: str) -> dict[str, object]:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for job in json.loads(wherry("job", "list", cluster, "-o", "json").stdout)["jobs"]:
            if job["state"] == "running":
                return dict(job)
        time.sleep(0.2)
    pytest.fail("the job did not start")


@pytest.mark.parametrize("flavour", list(LAUNCHERS))
def test_ctrl_c_ends_everything(wherry: Wherry, case: Path, flavour: str) -> None:
    if not Path(LAUNCHERS[flavour]).exists():
        pytest.skip(f"{LAUNCHERS[flavour]} is not installed")
    script = "setsid sleep 3600 & trap '' INT TERM HUP; echo up; while :; do sleep 1; done"
    client = subprocess.Popen(
        [str(WHERRY), "run", "four", "-n", "4", "--mpi", flavour, "--", "/bin/sh", "-c", script],
        cwd=case, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert client.stdout
    assert client.stdout.readline() == "up\n"
    job = running_job(wherry, "four")
    mark = f"WHERRY_JOB_ID={job['id']}"
    assert processes_with(mark)
    client.send_signal(signal.SIGINT)
    client.communicate(timeout=SECONDS)
    assert client.returncode == 130
    assert processes_with(mark) == []
    assert json.loads(wherry("job", "show", str(job["id"]), "-o", "json").stdout)["state"] == "cancelled"


def test_two_clusters_and_two_jobs_on_one_of_them_at_once(wherry: Wherry, case: Path) -> None:
    ring = ring_program("openmpi", case)
    asked = [("four", ring), ("two", ring), ("four", ring)]
    started = [
        subprocess.Popen(
            [str(WHERRY), "run", cluster, "-n", "2", "--", program, "--seconds", "3", "--json"],
            cwd=case, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for cluster, program in asked
    ]  # fmt: skip
    for client in started:
        out, err = client.communicate(timeout=SECONDS)
        assert client.returncode == 0, err
        assert json.loads(out)["errors"] == 0


def test_a_killed_daemon_loses_neither_job_nor_output(wherry: Wherry) -> None:
    detached = wherry(
        "run", "two", "-n", "2", "--detach", "--", "/bin/sh", "-c", "echo early; sleep 4; echo late; exit 3"
    )
    assert detached.returncode == 0, detached.stderr
    id = detached.stdout.strip()
    os.kill(int((Path("/run/wherry") / INSTANCE / "lock").read_text()), signal.SIGKILL)
    time.sleep(1)
    seen = wherry("logs", "two", "--job", id, "--follow")
    assert seen.stdout.count("early\n") == 2 and "late\n" in seen.stdout
    job = json.loads(wherry("job", "show", id, "-o", "json").stdout)
    assert job["state"] == "ended" and job["exit_code"] == 3


def test_a_job_of_another_user(wherry: Wherry, case: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    user = {"SUDO_UID": str(nobody.pw_uid), "SUDO_GID": str(nobody.pw_gid)}
    assert wherry("up", str(cluster_file(case, "theirs", 2)), **user).returncode == 0
    for flavour, launcher in LAUNCHERS.items():
        if Path(launcher).exists():
            done = wherry("run", "theirs", "-n", "2", "--mpi", flavour, "--", "/usr/bin/id", "-u", **user)
            assert done.returncode == 0, done.stderr
            assert done.stdout.split() == [str(nobody.pw_uid)] * 2
    refused = wherry("run", "two", "-n", "2", "--", "/usr/bin/id", **user)
    assert refused.returncode == 4 and "not yours" in refused.stderr
    assert wherry("down", "theirs").returncode == 0


def test_no_temporary_file_of_a_launcher_stays(wherry: Wherry) -> None:
    before = {path.name for path in Path("/tmp").iterdir() if path.name.startswith(("ompi.", "prte.", "openmpi-"))}
    assert wherry("run", "two", "-n", "2", "--", "/bin/true").returncode == 0
    after = {path.name for path in Path("/tmp").iterdir() if path.name.startswith(("ompi.", "prte.", "openmpi-"))}
    assert after == before
    own = list((Path(os.environ.get("WHERRY_STATE", "/var/lib/wherry")) / INSTANCE / "jobs").glob("*/own"))
    assert own == []
