"""Jobs from the command line on real nodes: both MPIs, streams, exit codes, Ctrl-C, concurrent jobs, other users."""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess
import time
from pathlib import Path

import pytest
from realworld import SECONDS, RealInstance, eventually, ring_program

from wherry.fabric.cgroup import TASKS, Cgroup, machine_layout

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root")

LAUNCHERS = {"openmpi": "/usr/bin/mpirun.openmpi", "mpich": "/usr/bin/mpiexec.mpich"}
ONE_IN_SMOKE = pytest.mark.parametrize(
    "flavour", ["openmpi", pytest.param("mpich", marks=pytest.mark.thorough)], indirect=True
)


def processes_with(mark: str) -> list[str]:
    """Command lines of processes on this machine, nodes included, whose environment or arguments contain `mark`."""
    commands = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            text = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
            if mark.encode() in text and entry.name != str(os.getpid()):
                commands.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return commands


@pytest.fixture(params=list(LAUNCHERS))
def flavour(request: pytest.FixtureRequest) -> str:
    """Each installed MPI."""
    flavour = str(request.param)
    if not Path(LAUNCHERS[flavour]).exists():
        pytest.skip(f"{LAUNCHERS[flavour]} is not installed")
    return flavour


def test_a_job_ends_when_a_node_of_it_is_lost(four: RealInstance, flavour: str) -> None:
    """The job ends at once and `up` repairs the cluster; a job without ranks on the lost node continues."""
    elsewhere = four.start("run", "four", "-n", "1", "--", "/bin/sleep", "12")
    with four.ring("four", flavour, ranks=2, seconds=600) as ring:
        (node,) = [node for node in four.json("status", "four")["nodes"] if node["name"] == "four-1"]
        Cgroup(f"{four.instance.prefix}/{node['host']}/four-1").kill()
        eventually(ring.running, False)
        assert not ring.running()
    (job,) = [job for job in four.json("job", "list", "four")["jobs"] if job["ranks"] == 2][-1:]
    assert job["state"] == "failed" and job["exit_code"] != 0
    assert job["reason"] == "its node four-1 was lost" and "wherry up" in job["next"]
    assert elsewhere.wait(SECONDS) == 0

    def states() -> set[str]:
        return {node["state"] for node in four.json("status", "four")["nodes"]}

    assert eventually(states, {"running", "lost"}) == {"running", "lost"}
    four.json("up", "four.yaml")
    assert states() == {"running"}


@pytest.mark.parametrize("after", [0.1, 0.4, 0.7, 1.0, 1.5])
def test_a_job_ends_soon_when_a_node_dies_while_it_starts(four: RealInstance, flavour: str, after: float) -> None:
    """Before its launcher has an agent at the node, and after that has ended."""
    node = next(node for node in four.json("status", "four")["nodes"] if node["name"] == "four-1")
    client = four.start("run", "four", "-n", "2", "--mpi", flavour, "--", "/bin/sleep", "600")
    try:
        time.sleep(after)
        Cgroup(f"{four.instance.prefix}/{node['host']}/four-1").kill()
        _, said = client.communicate(timeout=120)
    finally:
        client.kill()
        four.json("up", "four.yaml")
    assert client.returncode != 0, said
    assert not any(job["state"] in ("starting", "running") for job in four.json("job", "list", "four")["jobs"])


@pytest.mark.smoke
def test_ring_runs_on_four_nodes(four: RealInstance, flavour: str) -> None:
    ring = ring_program(flavour, four.directory)
    done = four("run", "four", "-n", "4", "--", ring, "--seconds", "2", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["errors"] == 0 and result["ranks"] == 4
    assert "setpgid" not in done.stderr
    used = four.json("node", "show", "four-1")["usage"]
    assert min(used["sent"], used["received"]) > result["checked_bytes"] // 5, "of four nodes each sends a quarter"
    listed = four.json("job", "list", "four")["jobs"][-1]
    assert listed["mpi"].startswith(flavour) and listed["state"] == "ended" and listed["exit_code"] == 0


@pytest.mark.smoke
def test_stdout_stderr_and_exit_code_are_passed_on(four: RealInstance, flavour: str) -> None:
    script = "echo to stdout; echo to stderr >&2; exit 7"
    done = four("run", "four", "-n", "1", "--mpi", flavour, "--", "/bin/sh", "-c", script)
    assert done.returncode == 7
    assert "to stdout" in done.stdout and "to stderr" not in done.stdout
    assert "to stderr" in done.stderr and "to stdout" not in done.stderr
    kept = four("logs", "four")
    assert "to stdout" in kept.stdout and "to stderr" in kept.stderr


@pytest.mark.smoke
def test_ranks_are_told_the_memory_of_their_node(four: RealInstance, flavour: str) -> None:
    """By all ways that programs ask."""
    program = "import os; print(os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE'))"
    script = (
        f'/usr/bin/python3 -c "{program}"; cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max'
    )
    done = four("run", "four", "-n", "1", "--mpi", flavour, "--", "/bin/sh", "-c", script)
    memory = {node["memory"] for node in four.json("status", "four")["nodes"]}
    assert set(map(int, done.stdout.split())) == memory and len(done.stdout.split()) == 2, done.stderr


def repeats() -> bool:
    """True for Open MPI 5, whose launcher duplicates input that it cannot forward at once
    (docs/design/0005-jobs.md)."""
    output = subprocess.run(["mpirun.openmpi", "--version"], capture_output=True, text=True, check=True).stdout
    return "(Open MPI) 5" in output


def test_rank_0_reads_standard_input_also_after_its_node_moved(four: RealInstance, flavour: str) -> None:
    script = "echo up; exec sed -u s/^/got:/"  # -u: line-buffered
    words = ("run", "four", "-n", "1", "--mpi", flavour, "--", "/bin/sh", "-c", script)
    lines = 20 if flavour == "mpich" else 2_000 if repeats() else 20_000  # MPICH's fails with more
    client = four.start(*words, stdin=subprocess.PIPE)
    try:
        assert client.stdin and client.stdout
        assert client.stdout.readline() == "up\n"
        print("before", file=client.stdin, flush=True)
        assert client.stdout.readline() == "got:before\n"
        source = four.hosts_of("four")["four-0"]
        target = next(host for host in four.hosts() if host != source)
        four.move("four-0", target)
        assert max_tasks(f"{four.instance.prefix}/{target}/four-0") in (str(TASKS), None), "its limits came along"
        out, err = client.communicate("".join(f"{number}\n" for number in range(lines)), timeout=SECONDS)
    finally:
        client.kill()
    assert client.returncode == 0, err
    assert out == "".join(f"got:{number}\n" for number in range(lines))


def max_tasks(group: str) -> str | None:
    """The cgroup's task limit; None where the kernel has no pids controller."""
    root = machine_layout().root("pids")
    return (root / Cgroup(group).name / "pids.max").read_text().strip() if root else None


def test_ranks_spread_over_the_nodes_as_root_of_the_cluster(four: RealInstance) -> None:
    script = "echo $(hostname) $(id -u) $OMP_NUM_THREADS $OWN"
    done = four("run", "four", "-n", "6", "--", "/bin/sh", "-c", script, OWN="mine")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == sorted(f"four-{index} 0 1 mine" for index in (0, 0, 1, 1, 2, 3))


def running_job(four: RealInstance, cluster: str) -> dict[str, object]:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for job in four.json("job", "list", cluster)["jobs"]:
            if job["state"] == "running":
                return dict(job)
        time.sleep(0.2)
    pytest.fail("the job did not start")


@ONE_IN_SMOKE
@pytest.mark.smoke
def test_ctrl_c_ends_all_ranks(four: RealInstance, flavour: str) -> None:
    script = "setsid sleep 3600 & trap '' INT TERM HUP; echo up; while :; do sleep 1; done"
    client = four.start("run", "four", "-n", "4", "--mpi", flavour, "--", "/bin/sh", "-c", script)
    assert client.stdout
    assert client.stdout.readline() == "up\n"
    job = running_job(four, "four")
    mark = f"WHERRY_JOB_ID={job['id']}"
    assert processes_with(mark)
    client.send_signal(signal.SIGINT)
    client.communicate(timeout=SECONDS)
    assert client.returncode == 130
    assert processes_with(mark) == []
    assert four.json("job", "show", str(job["id"]))["state"] == "cancelled"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_sigterm_and_sighup_end_the_job_as_ctrl_c_does(four: RealInstance, number: signal.Signals) -> None:
    client = four.start("run", "four", "-n", "2", "--", "/bin/sh", "-c", "echo up; exec sleep 3600")
    assert client.stdout and client.stdout.readline() == "up\n"
    job = running_job(four, "four")
    client.send_signal(number)
    client.communicate(timeout=SECONDS)
    assert client.returncode == 128 + number
    assert four.json("job", "show", str(job["id"]))["state"] == "cancelled"
    assert processes_with(f"WHERRY_JOB_ID={job['id']}") == []


def test_a_job_below_nohup_survives_the_hangup(four: RealInstance) -> None:
    """As users of nohup expect: its ranks, its input and its output."""
    script = "echo up; read word; echo $word"
    client = four.start("run", "four", "-n", "2", "--", "/bin/sh", "-c", script, stdin=subprocess.PIPE, nohup=True)
    assert client.stdout and client.stdout.readline() == "up\n"
    client.send_signal(signal.SIGHUP)
    out, err = client.communicate("on\n", timeout=SECONDS)
    assert client.returncode == 0 and "on\n" in out, (out, err)


def test_two_clusters_and_two_jobs_on_one_of_them_at_once(four: RealInstance) -> None:
    four.up("two", 2)
    ring = ring_program("openmpi", four.directory)
    started = [
        four.start("run", cluster, "-n", "2", "--", ring, "--seconds", "3", "--json")
        for cluster in ("four", "two", "four")
    ]
    for client in started:
        out, err = client.communicate(timeout=SECONDS)
        assert client.returncode == 0, err
        assert json.loads(out)["errors"] == 0


@pytest.mark.smoke
def test_job_and_its_streams_survive_a_killed_daemon(four: RealInstance) -> None:
    script = "echo early; read line; echo $line; exit 3"
    client = four.start("run", "four", "-n", "1", "--", "/bin/sh", "-c", script, stdin=subprocess.PIPE)
    assert client.stdout and client.stdin
    assert client.stdout.readline() == "early\n"
    id = str(running_job(four, "four")["id"])
    four.kill_daemon()
    out, _ = client.communicate("late\n", timeout=SECONDS)
    assert (out, client.returncode) == ("late\n", 3)
    output = four("logs", "four", "--job", id)
    assert output.stdout == "early\nlate\n"
    job = four.json("job", "show", id)
    assert job["state"] == "ended" and job["exit_code"] == 3


def test_detached_job_runs_without_its_client(four: RealInstance) -> None:
    words = ("run", "four", "-n", "1", "--detach", "--", "/bin/sh", "-c", "cat; sleep 1; echo late")
    id = four(*words).stdout.strip()
    assert four("logs", "four", "--job", id, "--follow").stdout == "late\n"


@pytest.mark.smoke
def test_job_of_another_user_runs_as_that_user(four: RealInstance) -> None:
    nobody = pwd.getpwnam("nobody")
    user = {"SUDO_UID": str(nobody.pw_uid), "SUDO_GID": str(nobody.pw_gid)}
    assert four("up", four.cluster_file("theirs", 2), **user).returncode == 0
    for flavour, launcher in LAUNCHERS.items():
        if Path(launcher).exists():
            done = four("run", "theirs", "-n", "2", "--mpi", flavour, "--", "/usr/bin/id", "-u", **user)
            assert done.returncode == 0, done.stderr
            assert done.stdout.split() == [str(nobody.pw_uid)] * 2
    refused = four("run", "four", "-n", "2", "--", "/usr/bin/id", **user)
    assert refused.returncode == 4 and "not yours" in refused.stderr
    assert four("down", "theirs").returncode == 0


def test_launchers_leave_no_temporary_files(four: RealInstance) -> None:
    before = {path.name for path in Path("/tmp").iterdir() if path.name.startswith(("ompi.", "prte.", "openmpi-"))}
    assert four("run", "four", "-n", "2", "--", "/bin/true").returncode == 0
    after = {path.name for path in Path("/tmp").iterdir() if path.name.startswith(("ompi.", "prte.", "openmpi-"))}
    assert after == before
    assert list((four.instance.state / "jobs").glob("*/own")) == []
